"""The way down after an out-of-memory: smaller microbatches, then checkpointing, then an end."""

from __future__ import annotations

from dataclasses import dataclass, replace

from brim.errors import InputError
from brim.planning.batch_plan import check_count
from brim.planning.measurement import NUM_HALVINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDown:
    """How large a microbatch may be now, and what comes after it.

    Every step either lowers the limit or switches checkpointing on, which it does once, so the way down has an end.

    Attributes:
        sizes: The plan's list, in falling order; None to halve.
        checkpointing: Whether checkpointing may be switched on: at the end of the list, or after as many halvings as
            a plan has.
        limit: The samples that a microbatch may have; None as long as nothing failed.
        num_steps: How often it went down.
        is_checkpointed: Whether checkpointing is on.
        smallest: The fewest samples that a microbatch may have.

    >>> way = StepDown(sizes=(16, 4), checkpointing=True)
    >>> steps = [way := way.after(16), way := way.after(4), way.after(4)]
    >>> [step and (step.limit, step.is_checkpointed) for step in steps]
    [(4, False), (4, True), None]
    """

    sizes: tuple[int, ...] | None = None
    checkpointing: bool = False
    limit: int | None = None
    num_steps: int = 0
    is_checkpointed: bool = False
    smallest: int = 1

    def __post_init__(self) -> None:
        if self.sizes is None:
            return
        for size in self.sizes:
            check_count("A size of step_down", size)
        if not self.sizes or list(self.sizes) != sorted(set(self.sizes), reverse=True):
            raise InputError(f"step_down is {list(self.sizes)}. Give falling sizes, e.g. brim.plan's [64, 32, 16, 8].")

    def after(self, failed: int) -> StepDown | None:
        """Return the next step after microbatches of `failed` samples did not fit; None at the end."""
        down = replace(self, num_steps=self.num_steps + 1)
        smaller = self._smaller(failed)
        is_list_done = smaller is None or (self.sizes is None and self.num_steps >= NUM_HALVINGS)
        if is_list_done and self.checkpointing and not self.is_checkpointed:
            return replace(down, limit=failed, is_checkpointed=True)
        return None if smaller is None else replace(down, limit=smaller)

    def num_parts(self, num_samples: int, *, at_least: int = 1) -> int:
        """Return into how many microbatches a batch is to be cut.

        >>> StepDown(limit=8).num_parts(20), StepDown(limit=8).num_parts(20, at_least=5), StepDown().num_parts(20)
        (3, 5, 1)
        """
        needed = 1 if self.limit is None else -(-num_samples // self.limit)
        return max(at_least, needed)

    def _smaller(self, failed: int) -> int | None:
        sizes = (failed // 2,) if self.sizes is None else self.sizes
        return next((size for size in sizes if self.smallest <= size < failed), None)
