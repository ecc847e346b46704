"""Accumulation whose gradient is the big batch's: `brim.Accumulator`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import nn

from brim.errors import InputError
from brim.planning.batch_plan import check_count
from brim.training.failures import Failure
from brim.training.gradient_sync import check_lockstep, sync_for
from brim.training.recovery import Recovery
from brim.training.splitting import count_samples, split
from brim.training.updating import Updater
from brim.training.window import Count, Window
from brim.training.windows import Windows


class Accumulator:
    """Run the backward passes of a loop, and update once for every window of microbatches.

    The gradient of an update is that of the mean loss over all items of its window, over all microbatches and ranks,
    however unequal they are. How many items there are is known at the end of a window only, so each loss is divided by
    as many as are expected, and the gradient is put right once, before it is clipped.

    In-batch statistics cannot be made equal by any accumulation: BatchNorm and contrastive losses see a microbatch.

    Args:
        model: The model, plain, in `DistributedDataParallel`, or sharded by `fully_shard`. While the accumulator
            lives it decides when DDP communicates.
        optimizer: One optimizer or several. All step at the end of a window.
        accumulation: Microbatches per window.
        clip_norm: Clip the norm of the gradient of all optimizers' parameters to this, or None.
        scaler: A `torch.amp.GradScaler`, or None. `backward` scales the loss.
        scheduler: One learning-rate scheduler or several, stepped after each update, or None.
        on_nan: What to do about a loss that is not finite: `raise` a `NonFiniteLossError` at the window's end, before
            the update; or `skip` the microbatch and its items with a warning, which reads every loss before its
            backward pass and so waits for the device.
        uneven: Whether ranks may have different numbers of microbatches. Gradients are then brought together after
            each window instead of during its last backward pass.
        group: The process group over which a window extends, where DDP or a one-dimensional mesh does not tell.
        recover: Whether `step` begins a window that ran out of memory again, with smaller microbatches. Over ranks
            gradients are then brought together after each window. With `fully_shard`, whose forward passes need all
            ranks, nothing is recovered.
        step_down: The sizes of microbatches to go down by, as a plan lists them; None to halve down to 1.
        checkpointing: Whether activation checkpointing may be switched on at the end of `step_down`, or after three
            halvings.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> acc = Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=2)
    >>> [acc.backward(model(torch.ones(n, 1)).sum(), items=n) for n in (1, 3, 2)]
    [False, True, False]
    >>> acc.items, acc.finish(), acc.items
    (4.0, True, 2.0)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        accumulation: int,
        clip_norm: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
        scheduler: Any = None,
        on_nan: Literal["raise", "skip"] = "raise",
        uneven: bool = False,
        group: Any = None,
        recover: bool = True,
        step_down: Sequence[int] | None = None,
        checkpointing: bool = False,
    ) -> None:
        check_count("accumulation", accumulation)
        if on_nan not in ("raise", "skip"):
            raise InputError(f"on_nan is {on_nan!r}. Use 'raise' or 'skip'.")
        self.accumulation = accumulation
        # A rank that leaves out its last backward pass, or has none, would keep the others waiting in theirs.
        self._sync = sync_for(model, group=group, defer=uneven or on_nan == "skip")
        if uneven and self._sync.is_lockstep:
            raise InputError("uneven=True does not work with fully_shard: every rank has to run every forward pass.")
        self._updater = Updater(
            model,
            optimizer,
            clip_norm=clip_norm,
            scaler=scaler,
            scheduler=scheduler,
            is_telling=self._sync.rank == 0,
        )
        self._recovery: Recovery | None = None
        if recover and not self._sync.is_lockstep:
            self._recovery = Recovery(
                model, sizes=step_down, checkpointing=checkpointing, is_telling=self._sync.rank == 0
            )
        elif step_down is not None or checkpointing:
            reason = "fully_shard needs all ranks in every forward pass" if recover else "recover is False"
            raise InputError(f"step_down and checkpointing are for recovery, and {reason}. Leave them out.")
        self._windows = Windows(
            sync=self._sync,
            updater=self._updater,
            recovery=self._recovery,
            accumulation=accumulation,
            skips=on_nan == "skip",
            uneven=uneven,
        )

    @property
    def loss(self) -> float | None:
        """The mean loss over all items of the last window, over all ranks; None before, or where it had no items."""
        return self._windows.loss

    @property
    def items(self) -> float:
        """The number of items of the last window over all ranks."""
        return self._windows.items

    @property
    def num_updates(self) -> int:
        """How often the optimizers stepped."""
        return self._windows.num_updates

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """The norm of the last gradient before it was clipped, or None without `clip_norm`."""
        return self._updater.grad_norm

    @property
    def advice(self) -> str | None:
        """What to set next time, after `step` went down to smaller microbatches; None where it did not."""
        return None if self._recovery is None else self._recovery.advice

    def backward(self, loss_sum: torch.Tensor, items: Count) -> bool:
        """Run the backward pass of one microbatch, and the update where it is the window's last.

        Args:
            loss_sum: The sum of the losses of the microbatch's items, not their mean.
            items: How many items that are: samples, or labels that are not ignored. A number or a tensor of one; 0
                where all labels are ignored.

        Returns:
            Whether the optimizers stepped.
        """
        windows, window = self._windows, self._windows.current
        is_left_out = windows.take(loss_sum, items)
        is_last = window.num_microbatches >= window.length
        reports = windows.exchange() if is_last else []
        if not is_left_out:
            with windows.dropping_on_failure():
                windows.pass_back(loss_sum, last=is_last)
        if is_last:
            return windows.close(reports)
        self._sync.expect(last=window.is_next_last)
        return False

    def step(self, batch: Any, loss_fn: Callable[[Any], Any]) -> bool:
        """Cut a whole batch into `accumulation` microbatches and update once.

        An out-of-memory on any rank, forward or backward, begins the window again on all of them with smaller
        microbatches, from the buffers and random numbers that it began with, and says so in one line.

        Args:
            batch: A tensor, or a tuple, list, mapping or dataclass of tensors, with the sample as first dimension.
            loss_fn: Takes a microbatch, returns the sum of its losses, or that and the number of its items. Without
                one the items are the samples.

        Returns:
            Whether the optimizers stepped.

        Raises:
            OutOfMemoryError: There is no smaller microbatch.
        """
        window = self._windows.current
        if window.num_microbatches:
            raise InputError(
                f"A window of backward() is open, with {window.num_microbatches} of {window.length} microbatches. "
                "Call finish() before step()."
            )
        if self._recovery is None:
            return self._run(batch, loss_fn)
        if self._windows.expected_items is None:
            self._windows.expect(0)  # as a rank does that has no batch
        self._sync.fall_silent()
        self._recovery.begin()
        while True:
            failure = self._try(batch, loss_fn, self._recovery)
            if failure is not None:
                self._recovery.make_room(failure)
            reports = self._windows.exchange(failure=failure, is_thrashing=self._recovery.is_thrashing())
            if reports:
                return self._windows.close(reports)

    def finish(self) -> bool:
        """Update with the last, shorter window, if one is open.

        Call it where the data ends, on every rank. A second call does nothing.

        Returns:
            Whether the optimizers stepped.
        """
        windows, is_updated = self._windows, False
        while True:
            if windows.expected_items is None and not windows.current.num_microbatches:
                windows.expect(0)
            reports = windows.exchange(is_finished=True)
            if any(report.num_microbatches for report in reports):
                is_updated = windows.close(reports)
            if reports and all(report.is_finished for report in reports):
                return is_updated

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the open window, to be saved beside the model's and the optimizers'.

        Every rank has its own. With `fully_shard`, call it on all ranks.
        """
        window = self._windows.current
        if self._sync.is_lockstep and window.num_microbatches:
            self._sync.reduce(self._updater.parameters())
            window.is_reduced = True
        return {
            "window": window.to_state(),
            "gradients": self._updater.gradients() if window.num_microbatches else [],
            "expected_items": self._windows.expected_items,
            "num_updates": self.num_updates,
            "recovery": None if self._recovery is None else self._recovery.to_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a window that `state_dict` returned, its gradients and the size of its microbatches included."""
        if not isinstance(state, dict) or "gradients" not in state:
            raise InputError("This is no state of an Accumulator. Pass what its state_dict() returned.")
        self._updater.check_gradients(state["gradients"])
        self._windows.go_on_with(Window.from_state(state["window"]), expected_items=state["expected_items"])
        self._windows.num_updates = state["num_updates"]
        self._updater.load_gradients(state["gradients"])
        if self._recovery is not None and state.get("recovery") is not None:
            self._recovery.load_state(state["recovery"])

    def _run(self, batch: Any, loss_fn: Callable[[Any], Any]) -> bool:
        """Run a window whose last microbatch brings the gradients together."""
        microbatches = split(batch, self.accumulation)
        if self._sync.is_lockstep:
            check_lockstep(self._sync, len(microbatches))
        is_updated = False
        self._windows.current.length = len(microbatches)
        with self._windows.dropping_on_failure():
            for microbatch in microbatches:
                self._sync.expect(last=self._windows.current.is_next_last)
                is_updated = self.backward(*_losses(loss_fn, microbatch))
        return is_updated

    def _try(self, batch: Any, loss_fn: Callable[[Any], Any], recovery: Recovery) -> Failure | None:
        """Run a window without a word to other ranks; return why it failed, or None."""
        windows = self._windows
        windows.current.is_silent = True
        self._sync.expect(last=False)
        with windows.dropping_on_failure():
            try:
                microbatches = recovery.cut(batch, self.accumulation)
                windows.current.length = len(microbatches)
                windows.current.microbatch = count_samples(microbatches[0])
                for microbatch in microbatches:
                    loss_sum, items = _losses(loss_fn, microbatch)
                    if not windows.take(loss_sum, items):
                        windows.pass_back(loss_sum, last=False)
            except Exception as error:  # noqa: BLE001  the user's code may raise anything, and all ranks must hear of it
                return recovery.judge(error)
        return None


def _losses(loss_fn: Callable[[Any], Any], microbatch: Any) -> tuple[torch.Tensor, Count]:
    result = loss_fn(microbatch)
    return result if isinstance(result, tuple) else (result, count_samples(microbatch))
