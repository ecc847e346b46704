"""What a search knows: the trials so far, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from brim.planning.throughput import rates_of_races
from brim.searching.bounds import Bounds

# How far below a size that failed when it was run once more others are not believed either, as a share; twice as far
# after every other failure. Processes of one kind may need 10% more than those of another: heaps differ.
DISTRUST = 0.01
MOST_DISTRUST = 0.5


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of one probe as far as a search needs it; `laps` are those of its race."""

    microbatch: int
    fits: bool
    peak_bytes: int | None = None
    step_seconds: float | None = None
    laps: Mapping[int, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Known:
    """Everything a strategy may look at."""

    bounds: Bounds
    trials: tuple[Trial, ...] = ()

    @property
    def ceiling(self) -> float:
        """Up to where sizes that fitted are believed: a size that failed after it had fitted says that others may."""
        unconfirmed = [
            trial.microbatch
            for number, trial in enumerate(self.trials)
            if not trial.fits and any(t.fits and t.microbatch == trial.microbatch for t in self.trials[:number])
        ]
        return min(
            (size * (1 - min(MOST_DISTRUST, DISTRUST * 2**number)) for number, size in enumerate(unconfirmed)),
            default=math.inf,
        )

    @property
    def largest_fit(self) -> int | None:
        """The largest microbatch that fitted and has not failed since, nor lies too near to one that has."""
        failed = {trial.microbatch for trial in self.trials if not trial.fits}
        ceiling = self.ceiling
        return max(
            (t.microbatch for t in self.trials if t.fits and t.microbatch not in failed and t.microbatch <= ceiling),
            default=None,
        )

    @property
    def smallest_oom(self) -> int | None:
        """The smallest microbatch above the largest fit that did not fit, or would not be believed if it did."""
        floor, step = self.largest_fit or 0, self.bounds.multiple_of
        failed = [trial.microbatch for trial in self.trials if not trial.fits and trial.microbatch > floor]
        if self.ceiling < math.inf:
            failed.append(int(self.ceiling) // step * step + step)
        return min(failed, default=None)

    @property
    def middle(self) -> int | None:
        """The microbatch halfway between the largest fit and the smallest that failed, or None if none is left."""
        low, high = self.largest_fit, self.smallest_oom
        if high is None or high <= self.bounds.smallest:
            return None
        if low is None:
            return self.bounds.clamp(high // 2)
        middle = self.bounds.clamp((low + high) // 2)
        if middle <= low:
            middle = low + self.bounds.multiple_of
        return middle if middle < high else None

    @property
    def peaks(self) -> tuple[tuple[int, int], ...]:
        """Pairs of microbatch and largest measured peak of the sizes that fitted, in order of size."""
        largest: dict[int, int] = {}
        for trial in self.trials:
            if trial.fits and trial.peak_bytes is not None:
                largest[trial.microbatch] = max(trial.peak_bytes, largest.get(trial.microbatch, 0))
        return tuple(sorted(largest.items()))

    @property
    def rates(self) -> dict[int, float]:
        """Samples per second of the sizes that fitted and have not failed since, in order of size.

        Where sizes took turns in races, these alone count.
        """
        failed = {trial.microbatch for trial in self.trials if not trial.fits}
        races = [trial.laps for trial in self.trials if trial.laps]
        if races:
            return {size: rate for size, rate in rates_of_races(races).items() if size not in failed}
        times: dict[int, list[float]] = {}
        for trial in self.trials:
            if trial.step_seconds and trial.microbatch not in failed:
                times.setdefault(trial.microbatch, []).append(trial.step_seconds)
        return {size: size / min(times[size]) for size in sorted(times)}
