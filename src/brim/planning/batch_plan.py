"""`brim.plan`: an effective batch as the fewest microbatches that fit, over all ranks, exact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from brim.errors import InputError
from brim.units import format_count

SCHEMA = "brim.plan/1"
# Microbatches that a plan lists one by one.
MOST_MICROBATCHES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """Microbatch × accumulation × ranks.

    Samples are dealt out as evenly as they go: first over the ranks, then over each rank's microbatches, with the
    larger shares first.

    Attributes:
        effective: Samples per optimizer step over all ranks.
        accumulation: Microbatches per optimizer step on each rank.
        ranks: Data-parallel processes.
        notes: What a user should know, one line each.

    >>> BatchPlan(effective=100, accumulation=3).microbatches
    (34, 33, 33)
    """

    effective: int
    accumulation: int = 1
    ranks: int = 1
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("effective", "accumulation", "ranks"):
            check_count(name, getattr(self, name))
        if self.accumulation > MOST_MICROBATCHES:
            raise InputError(
                f"Effective batch {self.effective:,} takes {self.accumulation:,} microbatches a step, more than anyone "
                f"would wait for. Use at most {MOST_MICROBATCHES:,}."
            )
        if self.effective // self.ranks < self.accumulation:
            raise InputError(
                f"Effective batch {self.effective:,} over {format_count(self.ranks, 'rank')} in "
                f"{self.accumulation:,} microbatches leaves a microbatch without a sample. "
                f"Use {self.ranks * self.accumulation:,} or more, or fewer microbatches."
            )

    def __repr__(self) -> str:
        """Write what a loop needs first; the microbatch follows from the rest."""
        sizes = f"microbatch={self.microbatch}, accumulation={self.accumulation}, ranks={self.ranks}"
        notes = f", notes={self.notes!r}" if self.notes else ""
        return f"{type(self).__name__}({sizes}, effective={self.effective}{notes})"

    @property
    def microbatch(self) -> int:
        """The largest microbatch of all."""
        return self.microbatches[0]

    @property
    def microbatches(self) -> tuple[int, ...]:
        """The microbatches of the first rank, which has the most samples."""
        return self.microbatches_of(0)

    @property
    def is_even(self) -> bool:
        """Whether all microbatches of all ranks are equal."""
        return self.effective == self.microbatch * self.accumulation * self.ranks

    @property
    def ranks_are_even(self) -> bool:
        """Whether all ranks have the same samples to do."""
        return self.effective % self.ranks == 0

    def microbatches_of(self, rank: int) -> tuple[int, ...]:
        """Return the microbatches of one rank."""
        if not 0 <= rank < self.ranks:
            raise InputError(f"There is no rank {rank} among {self.ranks}. Use 0 to {self.ranks - 1}.")
        share, left_over = divmod(self.effective, self.ranks)
        return split(share + (rank < left_over), self.accumulation)

    def to_dict(self) -> dict[str, Any]:
        """Return the document `brim.plan/1`; `per_rank` is null where all ranks are alike."""
        alike = self.ranks_are_even
        return {
            "schema": SCHEMA,
            "effective": self.effective,
            "ranks": self.ranks,
            "microbatch": self.microbatch,
            "accumulation": self.accumulation,
            "microbatches": list(self.microbatches),
            "per_rank": None if alike else [list(self.microbatches_of(rank)) for rank in range(self.ranks)],
            "notes": list(self.notes),
        }


def plan(effective: int, *, largest: int, ranks: int = 1) -> BatchPlan:
    """Return the fewest microbatches that fit and make exactly the effective batch.

    Args:
        effective: Samples per optimizer step over all ranks.
        largest: The largest microbatch that fits on one rank, e.g. from `brim.find`.
        ranks: Data-parallel processes. Where they do not divide the effective batch, some take one sample more than
            others, and the plan's notes say so.

    Raises:
        InputError: A value cannot be used.

    >>> plan(80, largest=4, ranks=5).microbatches
    (4, 4, 4, 4)
    >>> plan(100, largest=40).microbatches
    (34, 33, 33)
    """
    check_count("largest", largest)
    check_shares(effective, ranks=ranks)
    accumulation = fewest_microbatches(effective, largest=largest, ranks=ranks)
    planned = BatchPlan(effective=effective, accumulation=accumulation, ranks=ranks)
    return BatchPlan(effective=effective, accumulation=accumulation, ranks=ranks, notes=_notes(planned))


def fewest_microbatches(effective: int, *, largest: int, ranks: int = 1) -> int:
    """Return how many microbatches a rank needs at least: those of the rank with the most samples.

    >>> fewest_microbatches(100, largest=40), fewest_microbatches(100, largest=4, ranks=8)
    (3, 4)
    """
    return math.ceil(math.ceil(effective / ranks) / largest)


def gives(microbatch: int, *, accumulation: int = 1, ranks: int = 1) -> BatchPlan:
    """Return the plan that settings amount to: the way back from microbatches to the effective batch.

    >>> gives(4, accumulation=5, ranks=4).effective
    80
    """
    for name, value in (("microbatch", microbatch), ("accumulation", accumulation), ("ranks", ranks)):
        check_count(name, value)
    return BatchPlan(effective=microbatch * accumulation * ranks, accumulation=accumulation, ranks=ranks)


def split(total: int, num_parts: int) -> tuple[int, ...]:
    """Split a number into parts that differ by at most one, the larger ones first.

    >>> split(100, 3)
    (34, 33, 33)
    """
    share, left_over = divmod(total, num_parts)
    return (share + 1,) * left_over + (share,) * (num_parts - left_over)


def check_shares(effective: int, *, ranks: int) -> None:
    """Refuse an effective batch that the ranks cannot share."""
    check_count("effective", effective)
    check_count("ranks", ranks)
    if effective < ranks:
        raise InputError(
            f"Effective batch {effective:,} is below {ranks:,} ranks: each needs at least one sample. "
            f"Use an effective batch of {ranks:,} or more, or at most {format_count(effective, 'rank')}."
        )


def check_count(name: str, value: Any) -> None:
    """Refuse what is no whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} is {value!r}. Use a whole number of at least 1.")


def describe(microbatches: Sequence[int]) -> str:
    """Write microbatches as a sum, short where they are many.

    >>> describe((34, 33, 33)), describe((4,) * 16), describe((5,) * 3 + (4,) * 9)
    ('34 + 33 + 33', '16 × 4', '3 × 5 + 9 × 4')
    """
    counts = {size: microbatches.count(size) for size in dict.fromkeys(microbatches)}
    if len(counts) > 1 and len(microbatches) <= 4:
        return " + ".join(map(str, microbatches))
    return " + ".join(f"{count:,} × {size:,}" if count > 1 else f"{size:,}" for size, count in counts.items())


def equation(plan: BatchPlan) -> str:
    """Write a plan as people check it.

    >>> equation(BatchPlan(effective=60, accumulation=3, ranks=5)), equation(BatchPlan(effective=100, accumulation=3))
    ('4 × 3 × 5 = 60', '34 + 33 + 33 = 100')
    >>> equation(BatchPlan(effective=100, accumulation=3, ranks=2)), equation(BatchPlan(effective=7, ranks=2))
    ('(17 + 17 + 16) × 2 = 100', '7 over 2 ranks that differ')
    """
    if plan.is_even:
        return f"{plan.microbatch:,} × {plan.accumulation:,} × {plan.ranks:,} = {plan.effective:,}"
    if not plan.ranks_are_even:
        return f"{plan.effective:,} over {plan.ranks:,} ranks that differ"
    terms = describe(plan.microbatches)
    return f"{terms if plan.ranks == 1 else f'({terms}) × {plan.ranks:,}'} = {plan.effective:,}"


def _notes(planned: BatchPlan) -> tuple[str, ...]:
    notes = []
    if not planned.is_even:
        notes.append("Microbatches differ by one sample: weigh each loss by its samples, not by 1/accumulation.")
    if not planned.ranks_are_even:
        more = planned.effective % planned.ranks
        share = planned.effective // planned.ranks
        below = planned.effective - more
        notes.append(
            f"Ranks differ: {more} with {share + 1} samples, {planned.ranks - more} with {share}. {below:,} or "
            f"{below + planned.ranks:,} would divide over {planned.ranks:,}."
        )
    return tuple(notes)
