"""Even choices: effective batches of equal microbatches, and by how much they miss what was wanted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from brim.planning.batch_plan import BatchPlan, check_count, fewest_microbatches, gives

# How many times the fewest microbatches an exact even plan may take before missing the target is the better deal.
_MOST_STEPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EvenChoice:
    """Equal microbatches near a target.

    Attributes:
        plan: What the settings amount to.
        target: The effective batch that was wanted.
    """

    plan: BatchPlan
    target: int

    @property
    def difference(self) -> int:
        """How many samples more than the target; negative where it falls short."""
        return self.plan.effective - self.target

    @property
    def missed(self) -> str:
        """The difference in words."""
        if not self.difference:
            return "exact"
        return f"{abs(self.difference):,} {'short' if self.difference < 0 else 'over'}"

    def __str__(self) -> str:
        steps = f"{self.plan.accumulation:,} step{'s' if self.plan.accumulation != 1 else ''}"
        return f"{steps}, {self.plan.effective:,}, {self.missed}"


def at_microbatch(target: int, *, microbatch: int, ranks: int = 1) -> list[EvenChoice]:
    """Return the choices next to the target that keep a microbatch, the nearest first.

    >>> [str(choice) for choice in at_microbatch(100, microbatch=32)]
    ['3 steps, 96, 4 short', '4 steps, 128, 28 over']
    """
    for name, value in (("effective", target), ("microbatch", microbatch), ("ranks", ranks)):
        check_count(name, value)
    around = _around(Fraction(target, microbatch * ranks))
    choices = [EvenChoice(plan=gives(microbatch, accumulation=each, ranks=ranks), target=target) for each in around]
    return sorted(choices, key=lambda choice: abs(choice.difference))


def nearest_even(target: int, *, largest: int, ranks: int = 1) -> EvenChoice:
    """Return equal microbatches for frameworks that know one size: those nearest to the target, with few more steps.

    >>> str(nearest_even(100, largest=40)), str(nearest_even(101, largest=40))
    ('4 steps, 100, exact', '3 steps, 102, 1 over')
    """
    for name, value in (("effective", target), ("largest", largest), ("ranks", ranks)):
        check_count(name, value)
    fewest = fewest_microbatches(target, largest=largest, ranks=ranks)
    share = Fraction(target, ranks)

    def miss(steps: int, size: int) -> tuple[int, int, int]:
        difference = size * steps * ranks - target
        return abs(difference), steps, difference

    most = _MOST_STEPS * fewest
    if fewest <= largest:
        found = [(steps, size) for steps in range(max(1, fewest - 1), most + 1) for size in _around(share / steps)]
    else:
        found = [(steps, size) for size in range(1, largest + 1) for steps in _around(share / size)]
    allowed = [(steps, size) for steps, size in found if steps <= most and size <= largest]
    steps, size = min(allowed, key=lambda setting: miss(*setting))
    return EvenChoice(plan=gives(size, accumulation=steps, ranks=ranks), target=target)


def _around(value: Fraction) -> list[int]:
    """Return the whole numbers next to a value, from 1 on, the smaller first."""
    return sorted({max(1, math.floor(value)), math.ceil(value)})
