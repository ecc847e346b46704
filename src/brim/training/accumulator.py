"""Accumulation whose gradient is the big batch's: `brim.Accumulator`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn

from brim.errors import InputError
from brim.planning.batch_plan import check_count
from brim.training.gradient_sync import sync_for
from brim.training.splitting import count_samples, split
from brim.training.telling import warn_caller
from brim.training.updating import Updater
from brim.training.window import Count, RankReport, Window, check_microbatch, find_problem


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

    Attributes:
        loss: The mean loss over all items of the last window, over all ranks; None before, or where it had no items.
        items: The number of items of the last window over all ranks.
        num_updates: How often the optimizers stepped.

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
    ) -> None:
        check_count("accumulation", accumulation)
        if on_nan not in ("raise", "skip"):
            raise InputError(f"on_nan is {on_nan!r}. Use 'raise' or 'skip'.")
        self.accumulation = accumulation
        self.loss: float | None = None
        self.items = 0.0
        self.num_updates = 0
        self._skips = on_nan == "skip"
        self._uneven = uneven
        # A rank that leaves out its last backward pass, or has none, would keep the others waiting in theirs.
        self._sync = sync_for(model, group=group, defer=uneven or self._skips)
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
        self._expected_items: float | None = None
        self._open(1)

    @property
    def grad_norm(self) -> torch.Tensor | None:
        """The norm of the last gradient before it was clipped, or None without `clip_norm`."""
        return self._updater.grad_norm

    def backward(self, loss_sum: torch.Tensor, items: Count) -> bool:
        """Run the backward pass of one microbatch, and the update where it is the window's last.

        Args:
            loss_sum: The sum of the losses of the microbatch's items, not their mean.
            items: How many items that are: samples, or labels that are not ignored. A number or a tensor of one; 0
                where all labels are ignored.

        Returns:
            Whether the optimizers stepped.
        """
        check_microbatch(loss_sum, items)
        window = self._window
        if not window.num_microbatches:
            self._begin(items)
        is_last = window.is_next_last
        value = loss_sum.detach()
        is_left_out = self._skips and self._is_left_out(value)
        window.add(0.0 if is_left_out else value, 0 if is_left_out else items)
        reports = self._exchange() if is_last else []
        if not is_left_out:
            # Of the size of a mean, as 16-bit numbers and the scaler want it; over ranks gradients are averaged.
            loss = loss_sum * (self._sync.num_ranks / (self._expected_items or 1.0))
            with self._dropping_on_failure():
                window.is_reduced = self._sync.backward(self._updater.scale(loss), last=is_last)
        if is_last:
            return self._close(reports)
        self._sync.expect(last=window.is_next_last)
        return False

    def step(self, batch: Any, loss_fn: Callable[[Any], Any]) -> bool:
        """Cut a whole batch into `accumulation` microbatches and update once.

        Args:
            batch: A tensor, or a tuple, list, mapping or dataclass of tensors, with the sample as first dimension.
            loss_fn: Takes a microbatch, returns the sum of its losses, or that and the number of its items. Without
                one the items are the samples.

        Returns:
            Whether the optimizers stepped.
        """
        if self._window.num_microbatches:
            raise InputError(
                f"A window of backward() is open, with {self._window.num_microbatches} of {self._window.length} "
                "microbatches. Call finish() before step()."
            )
        microbatches = split(batch, self.accumulation)
        self._check_lockstep(len(microbatches))
        is_updated = False
        self._window.length = len(microbatches)
        with self._dropping_on_failure():
            for microbatch in microbatches:
                self._sync.expect(last=self._window.is_next_last)
                result = loss_fn(microbatch)
                loss_sum, items = result if isinstance(result, tuple) else (result, count_samples(microbatch))
                is_updated = self.backward(loss_sum, items)
        return is_updated

    def finish(self) -> bool:
        """Update with the last, shorter window, if one is open.

        Call it where the data ends, on every rank. A second call does nothing.

        Returns:
            Whether the optimizers stepped.
        """
        is_updated = False
        while True:
            if self._expected_items is None and not self._window.num_microbatches:
                self._expect(0)
            reports = self._exchange(is_finished=True)
            if any(report.num_microbatches for report in reports):
                is_updated = self._close(reports)
            if all(report.is_finished for report in reports):
                return is_updated

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the open window, to be saved beside the model's and the optimizers'.

        Every rank has its own. With `fully_shard`, call it on all ranks.
        """
        window = self._window
        parameters = self._updater.parameters() if window.num_microbatches else []
        if self._sync.is_lockstep and parameters:
            self._sync.reduce(parameters)
            window.is_reduced = True
        gradients = [parameter.grad for parameter in parameters]
        return {
            "window": window.to_state(),
            "gradients": [None if gradient is None else gradient.detach().clone() for gradient in gradients],
            "expected_items": self._expected_items,
            "num_updates": self.num_updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with a window that `state_dict` returned, its gradients included."""
        if not isinstance(state, dict) or "gradients" not in state:
            raise InputError("This is no state of an Accumulator. Pass what its state_dict() returned.")
        gradients, parameters = state["gradients"], self._updater.parameters()
        shapes = [(p.shape, g.shape) for p, g in zip(parameters, gradients, strict=False) if g is not None]
        if gradients and (len(gradients) != len(parameters) or any(ours != theirs for ours, theirs in shapes)):
            raise InputError(
                f"The state holds {len(gradients)} gradients that do not fit the optimizers' {len(parameters)} "
                "parameters. Load it with the model and optimizers it was saved with."
            )
        self._drop()
        for parameter, gradient in zip(parameters, gradients, strict=False):
            parameter.grad = None if gradient is None else gradient.detach().clone().to(parameter.device)
        self._expected_items, self.num_updates = state["expected_items"], state["num_updates"]
        self._window = Window.from_state(state["window"])
        self._sync.expect(last=self._window.is_next_last)

    def _begin(self, items: Count) -> None:
        """Open a window: nothing but its own microbatches may be in its gradient."""
        if self._updater.has_gradients():
            raise InputError(
                f"There are gradients before the first microbatch of window {self._window.index}, and they would count "
                "as part of it. Call optimizer.zero_grad(), and leave every backward pass to Accumulator.backward()."
            )
        if self._expected_items is None:
            self._expect(float(items))

    def _expect(self, items: float) -> None:
        """Guess from the first microbatch, the same on all ranks, how many items a window has."""
        largest = max(row[0] for row in self._sync.gather([items]))
        self._expected_items = largest * self.accumulation * self._sync.num_ranks or None

    def _is_left_out(self, loss: torch.Tensor) -> bool:
        is_left_out = not math.isfinite(float(loss))
        reason = f"has a loss of {float(loss)}"
        if self._sync.is_lockstep and not is_left_out:
            reason = "has no finite loss on another rank"
        if self._sync.is_lockstep:
            is_left_out = any(row[0] for row in self._sync.gather([float(is_left_out)]))
        if is_left_out:
            where = self._window.place(rank=self._sync.rank if self._sync.num_ranks > 1 else None)
            warn_caller(f"{where} {reason}: it is left out, with its items.")
        return is_left_out

    def _exchange(self, *, is_finished: bool = False) -> list[RankReport]:
        """Return what every rank's window holds; refuse, on all ranks alike, what no update can be made of."""
        row = self._window.report(is_finished=is_finished).to_row()
        reports = [RankReport.from_row(row) for row in self._sync.gather(row)]
        problem = find_problem(reports, self._window, uneven=self._uneven)
        if problem is not None:
            self._drop()
            raise problem
        return reports

    def _close(self, reports: list[RankReport]) -> bool:
        """Update with all that the window holds over all ranks."""
        window = self._window
        self.items = math.fsum(report.items for report in reports)
        if self.items == 0:
            self.loss = None
            if self._sync.rank == 0:
                warn_caller(f"Window {window.index} holds no items in any of its microbatches: nothing is updated.")
            self._drop()
            return False
        self.loss = math.fsum(report.loss for report in reports) / self.items
        if not window.is_reduced:
            self._sync.reduce(self._updater.parameters())
        is_updated = self._updater.update((self._expected_items or 1.0) / self.items, loss=self.loss)
        self.num_updates += is_updated
        if not any(report.is_finished for report in reports):
            self._expected_items = self.items
        self._open(window.index + 1)
        return is_updated

    def _open(self, index: int) -> None:
        self._window = Window(index=index, length=self.accumulation)
        self._sync.expect(last=self._window.is_next_last)

    def _drop(self) -> None:
        """Forget the open window with its gradients."""
        if self._sync.is_lockstep and self._window.num_microbatches:
            self._sync.reduce([])  # what is still unsharded cannot be dropped otherwise
        self._updater.clear()
        self._open(self._window.index + 1)

    @contextmanager
    def _dropping_on_failure(self) -> Iterator[None]:
        """Let no half of a window stay where something fails in its middle."""
        window = self._window
        try:
            yield
        except BaseException:
            # With sharded parameters dropping takes all ranks, and the others may not have failed.
            if self._window is window and not self._sync.is_lockstep:
                self._drop()
            raise

    def _check_lockstep(self, num_microbatches: int) -> None:
        if not self._sync.is_lockstep:
            return
        counts = [int(row[0]) for row in self._sync.gather([float(num_microbatches)])]
        if len(set(counts)) > 1:
            raise InputError(
                f"The ranks' batches make {counts} microbatches, and with fully_shard every rank has to run every "
                "forward pass. Give each at least as many samples as there are microbatches."
            )
