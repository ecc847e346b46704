"""The windows of a run, one after the other: opened, filled, agreed on by all ranks, and closed by an update."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from brim.errors import InputError
from brim.training.failures import Failure
from brim.training.gradient_sync import GradientSync
from brim.training.recovery import Recovery
from brim.training.telling import warn_caller
from brim.training.updating import Updater
from brim.training.window import Count, Ending, RankReport, Window, check_microbatch, find_problem


class Windows:
    """Microbatches in, an update out for every window.

    Args:
        sync: How gradients become the mean over all ranks.
        updater: What an update is.
        recovery: What to do about an out-of-memory, or None.
        accumulation: Microbatches per window.
        skips: Whether microbatches without a finite loss are left out.
        uneven: Whether ranks may have different numbers of microbatches.

    Attributes:
        current: The open window.
        expected_items: What losses are divided by; None before the first microbatch.
        loss: The mean loss over all items of the last window, over all ranks; None before, or where it had no items.
        items: The number of items of the last window over all ranks.
        num_updates: How often the optimizers stepped.
    """

    def __init__(
        self,
        *,
        sync: GradientSync,
        updater: Updater,
        recovery: Recovery | None,
        accumulation: int,
        skips: bool,
        uneven: bool,
    ) -> None:
        self.expected_items: float | None = None
        self._agreed_items: float | None = None
        self.loss: float | None = None
        self.items = 0.0
        self.num_updates = 0
        self._sync = sync
        self._updater = updater
        self._recovery = recovery
        self._accumulation = accumulation
        self._skips = skips
        self._uneven = uneven
        self._open(1)

    def take(self, loss_sum: torch.Tensor, items: Count) -> bool:
        """Take a microbatch into the window; return whether it is left out."""
        check_microbatch(loss_sum, items)
        if not self.current.num_microbatches:
            self._begin(items)
        value = loss_sum.detach()
        is_left_out = self._skips and self._is_left_out(value)
        self.current.add(0.0 if is_left_out else value, 0 if is_left_out else items)
        return is_left_out

    def pass_back(self, loss_sum: torch.Tensor, *, last: bool) -> None:
        """Run the backward pass of a microbatch; the last one may bring the gradients together."""
        # Of the size of a mean, as 16-bit numbers and the scaler want it; over ranks gradients are averaged.
        loss = loss_sum * (self._sync.num_ranks / (self.expected_items or 1.0))
        self.current.is_reduced = self._sync.backward(self._updater.scale(loss), last=last)

    def exchange(
        self, *, is_finished: bool = False, failure: Failure | None = None, is_thrashing: bool = False
    ) -> list[RankReport]:
        """Return what every rank's window holds; refuse, on all ranks alike, what no update can be made of.

        Returns:
            Nothing where a rank ran out of memory: the window is to be tried again.
        """
        mine = self.current.report(
            expected_items=self.expected_items or 0.0,
            is_finished=is_finished,
            ending=_ending(failure),
            is_thrashing=is_thrashing,
        )
        reports = [RankReport.from_row(row) for row in self._sync.gather(mine.to_row())]
        with self.dropping_on_failure():
            if self._recovery and not self._recovery.settle(reports, window=self.current.index, failure=failure):
                self._updater.clear()
                self._open(self.current.index)
                return []
        problem = find_problem(reports, self.current, uneven=self._uneven)
        if problem is not None:
            self._drop()
            raise problem
        expected_items = max(report.expected_items for report in reports)
        if self.expected_items and self.expected_items != expected_items:
            # Of a silent window. Weighed alike, the gradients can be averaged.
            self._updater.weigh(self.expected_items / expected_items)
        self._agree_on(expected_items)
        return reports

    def close(self, reports: list[RankReport]) -> bool:
        """Update with all that the window holds over all ranks; return whether the optimizers stepped."""
        window = self.current
        self.items = math.fsum(report.items for report in reports)
        if self.items == 0:
            self.loss = None
            if self._sync.rank == 0:
                warn_caller(f"Window {window.index} holds no items in any of its microbatches: nothing is updated.")
            self._drop()
            return False
        self.loss = math.fsum(report.loss for report in reports) / self.items
        if not window.is_reduced:
            with self.dropping_on_failure():
                self._sync.reduce(self._updater.parameters())
        is_updated = self._update((self.expected_items or 1.0) / self.items, self.loss)
        self.num_updates += is_updated
        if not any(report.is_finished for report in reports):
            self._agree_on(self.items)
        self._open(window.index + 1)
        return is_updated

    def expect(self, items: float) -> None:
        """Guess from the first microbatch how many items a window has: the same on all ranks, unless it is silent."""
        factor = self.current.length * self._sync.num_ranks
        if self.current.is_silent:
            self.expected_items = items * factor or None
        else:
            self._agree_on(factor * max(row[0] for row in self._sync.gather([items])))

    def go_on_with(self, window: Window, *, expected_items: float | None) -> None:
        """Drop the open window and go on with another."""
        self._drop()
        self.current = window
        self._agree_on(expected_items)
        self._sync.expect(last=window.is_next_last)

    @contextmanager
    def dropping_on_failure(self) -> Iterator[None]:
        """Let no half of a window stay where something fails in its middle."""
        window = self.current
        try:
            yield
        except BaseException:
            # With sharded parameters dropping takes all ranks, and the others may not have failed.
            if self.current is window and not self._sync.is_lockstep:
                self._drop()
            raise

    def _update(self, factor: float, loss: float) -> bool:
        """Update; where that fails in its middle, and had reason to, leave weights and optimizers as they were.

        The first update makes the optimizers' states, and a window that ran out of memory before may do so again.
        Others need no more than those before them did, and less than a backward pass.
        """
        if self._recovery is None:
            return self._updater.update(factor, loss=loss)
        with self.dropping_on_failure():
            try:
                is_risky = not self.num_updates or self._recovery.is_again
                return self._updater.update(factor, loss=loss, is_risky=is_risky)
            except Exception as error:
                if self._recovery.judge(error).is_oom:
                    raise self._recovery.refuse_update(self.current.index) from error
                raise

    def _begin(self, items: Count) -> None:
        """Open a window: nothing but its own microbatches may be in its gradient."""
        if self._updater.has_gradients():
            raise InputError(
                f"There are gradients before the first microbatch of window {self.current.index}, and they would count "
                "as part of it. Call optimizer.zero_grad(), and leave every backward pass to Accumulator.backward()."
            )
        if self.expected_items is None:
            self.expect(float(items))

    def _is_left_out(self, loss: torch.Tensor) -> bool:
        is_left_out = not math.isfinite(float(loss))
        reason = f"has a loss of {float(loss)}"
        if self._sync.is_lockstep and not is_left_out:
            reason = "has no finite loss on another rank"
        if self._sync.is_lockstep:
            is_left_out = any(row[0] for row in self._sync.gather([float(is_left_out)]))
        if is_left_out:
            where = self.current.place(rank=self._sync.rank if self._sync.num_ranks > 1 else None)
            warn_caller(f"{where} {reason}: it is left out, with its items.")
        return is_left_out

    def _agree_on(self, expected_items: float | None) -> None:
        self.expected_items = self._agreed_items = expected_items or None

    def _open(self, index: int) -> None:
        self.current = Window(index=index, length=self._accumulation)
        self.expected_items = self._agreed_items  # what a rank guessed in a silent window that failed is its own
        self._sync.expect(last=self.current.is_next_last)

    def _drop(self) -> None:
        """Forget the open window with its gradients."""
        if self._sync.is_lockstep and self.current.num_microbatches:
            self._sync.reduce([])  # what is still unsharded cannot be dropped otherwise
        self._updater.clear()
        self._open(self.current.index + 1)


def _ending(failure: Failure | None) -> Ending:
    if failure is None:
        return Ending.WHOLE
    if failure.is_too_small:
        return Ending.TOO_SMALL
    return Ending.OUT_OF_MEMORY if failure.is_oom else Ending.FAILED
