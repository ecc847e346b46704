"""The smallest microbatch that runs nearly as fast as any: grow while that pays, then look below."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from brim.errors import InputError
from brim.findings import FASTEST, NUM_UNTIMED, Race
from brim.planning.step_time import StepTime, fit_step_time
from brim.searching.known import Known

# The first size to time, in samples: small enough to fit nearly everywhere, large enough to tell steps from overhead.
FIRST = 8
# Each size is this many times the last while that pays; five sizes then span a factor of 256.
GROWTH = 4
# A larger size that is faster by less than this, as a share, was not worth it.
WORTH = 0.05
# A size that is slower by more than this, as a share, is so by more than bad luck.
CLEARLY_SLOWER = 0.15
# The answer's rate may be below the best that was measured by this share, and by the line through all step times as
# well, which a single size's luck moves less. What it promises is 5%: equal races differ by 1 to 2%, smaller sizes do a
# little better in a race than alone, and a size that was not tried may be a little faster.
CLOSE_ENOUGH = 0.01
# The last size before the limit is tried where it is larger by this, as a ratio.
MORE = 1.1
# Sizes nearer to each other than this, as a ratio, are not told apart.
NEAR = 1.15
# How many sizes are tried; the answer's confirmation is the sixth probe.
MAX_TRIES = 5
# Steps of a size are timed for this long, in seconds, but no more and no fewer than so many: what else a machine does
# comes and goes in tenths of a second, and a few short steps may have met it all the time.
TIMED_SECONDS = 1.0
FEWEST_STEPS = 9
MOST_STEPS = 100
# Of the first size nothing is known: a second's worth if a step takes 40 ms.
FIRST_STEPS = 25
# Sizes take turns for about this long, in seconds, but no more and no fewer rounds than so many.
RACE_SECONDS = 3.0
FEWEST_ROUNDS = 3
MOST_ROUNDS = 30
# Of the first race nothing is known: what it costs where a step is long must be borne.
FIRST_ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Fastest:
    """Grow by four while the rate grows, then halve the gap below the smallest size that is fast enough.

    Timings of processes that ran one after the other differ by what else the machine did meanwhile. So a probe races
    its size against others that fit, where it can, and rates are compared within races.

    Attributes:
        limit_bytes: The peak that must not be passed.
        races: Whether sizes can take turns in one process.

    >>> from brim.searching.bounds import Bounds
    >>> from brim.searching.search import Search
    >>> search = Search(Fastest(limit_bytes=10**9), Bounds(cap=4096), choose=fastest_fit)
    >>> while (ask := search.ask()) is not None:
    ...     search.tell(ask.microbatch, fits=True, peak_bytes=1, step_seconds=0.040 + 0.005 * ask.microbatch)
    >>> [trial.microbatch for trial in search.known.trials], search.answer
    ([8, 32, 128, 512, 256, 512], 512)
    """

    limit_bytes: int
    races: bool = False
    name: str = FASTEST

    def propose(self, known: Known) -> int | None:
        """Return the next size to time, or None when no other would change the answer."""
        if len({trial.microbatch for trial in known.trials}) >= MAX_TRIES:
            return None
        rates = known.rates
        if not rates:
            return self._first(known)
        if self._pays(known):
            grown = self._grow(known, max(rates))
            if grown is not None:
                return grown
        between = _look_below(known, self._num_between)
        return between[-1] if between else None

    def race(self, known: Known, microbatch: int) -> Race:
        """Return the sizes that a probe times in turn: its own and those that it is to be compared with."""
        smaller = [size for size in _fitted(known) if size < microbatch]
        sizes: set[float]
        if known.rates and microbatch < max(known.rates):
            sizes = {microbatch, *_look_below(known, self._num_between), *_around(known)}
        elif smaller:
            last = max(smaller)
            sizes = {microbatch, math.sqrt(microbatch * last), last, last / 2}
        else:
            sizes = {microbatch, microbatch / 2, microbatch / 4}
        race = tuple(sorted({known.bounds.clamp(size) for size in sizes}))
        if not known.rates:
            return Race(race, FIRST_ROUNDS)
        turns = Race(race, 1)
        seconds = sum((turns.steps_in_turn(size) + NUM_UNTIMED) * _expected_seconds(known, size) for size in race)
        return Race(race, max(FEWEST_ROUNDS, min(MOST_ROUNDS, round(RACE_SECONDS / seconds))))

    @property
    def _num_between(self) -> int:
        """How many sizes between two are timed at once."""
        return 2 if self.races else 1

    def _pays(self, known: Known) -> bool:
        """Return whether the largest size was worth it, so that a larger one may be."""
        rates = known.rates
        largest = max(rates)
        # A race has sizes in between as well: what they gain on each other is less.
        smaller = [rate for size, rate in rates.items() if size < largest / (GROWTH / 2 if self.races else 1)]
        gain = rates[largest] / max(smaller) if smaller and len(_fitted(known)) > 1 else math.inf
        # Two sizes alone do not tell luck from speed, so a third one decides unless the second is clearly slower.
        is_unsure = not self.races and len(rates) == 2
        return gain > 1 + WORTH or (is_unsure and gain > 1 - CLEARLY_SLOWER)

    def _first(self, known: Known) -> int | None:
        failed = known.smallest_oom
        if failed is None:
            return known.bounds.clamp(FIRST)
        return known.bounds.clamp(failed // GROWTH) if failed > known.bounds.smallest else None

    def _grow(self, known: Known, largest: int) -> int | None:
        """Return a larger size that should fit, or None where there is none."""
        failed = known.smallest_oom
        target = min(float(largest * GROWTH), self._fitting(known, largest))
        if failed is not None and not MORE * largest <= target < failed:
            target = float(known.middle or largest)
        size = known.bounds.clamp(target)
        return size if size >= MORE * largest else None

    def _fitting(self, known: Known, largest: int) -> float:
        """Return where the line through the measured peaks meets the limit; one peak alone is a share of every sample.

        What one peak says is too low, by what the job needs without samples: of use only where more was too much.
        """
        peaks = dict(known.peaks)
        smaller = [size for size in peaks if size < largest and peaks[size] < peaks.get(largest, 0)]
        if not smaller:
            peak = peaks.get(largest)
            return largest * self.limit_bytes / peak if peak and known.smallest_oom else math.inf
        slope = (peaks[largest] - peaks[max(smaller)]) / (largest - max(smaller))
        return largest + (self.limit_bytes - peaks[largest]) / slope


def steps_to_time(known: Known, microbatch: int) -> int:
    """Return how many steps of a size to time, for a few short ones may all have met something else.

    >>> from brim.searching.bounds import Bounds
    >>> from brim.searching.known import Trial
    >>> known = Known(Bounds(cap=64), (Trial(8, True, 1, 0.010),))
    >>> steps_to_time(known, 32), steps_to_time(known, 2), steps_to_time(known, 1024)
    (25, 100, 9)
    """
    rates = known.rates
    if not rates:
        return FIRST_STEPS
    return max(FEWEST_STEPS, min(MOST_STEPS, round(TIMED_SECONDS / _expected_seconds(known, microbatch))))


def _expected_seconds(known: Known, microbatch: int) -> float:
    """Return what a step should take by the line through all that was timed, or else by the nearest size."""
    rates = known.rates
    line = _line(rates)
    if line is not None:
        return line.seconds(microbatch)
    nearest = min(rates, key=lambda size: abs(math.log(size / microbatch)))
    # A smaller size than the nearest takes longer than its share, at most as long.
    return max(microbatch, nearest / 2) / rates[nearest]


def fastest_fit(known: Known) -> int | None:
    """Return the smallest size that was fast enough, by its own rate and by the line through all step times.

    One size may be lucky; the line, which all of them make, is hardly so. On it a larger size is never slower, so it is
    held against the largest.
    """
    rates = known.rates
    if not rates:
        return None
    best = max(rates, key=lambda size: rates[size])
    line = _line(rates)
    fast = (size for size, rate in rates.items() if rate >= (1 - CLOSE_ENOUGH) * rates[best])
    if line is not None:
        fast = (size for size in fast if line.rate(size) >= (1 - CLOSE_ENOUGH) * line.rate(max(rates)))
    return min(fast, default=best)


def _line(rates: Mapping[int, float]) -> StepTime | None:
    """Return the line through the step times, or None where these make none."""
    try:
        return fit_step_time({size: size / rate for size, rate in rates.items()})
    except InputError:
        return None


def _fitted(known: Known) -> set[int]:
    return {trial.microbatch for trial in known.trials if trial.fits}


def _around(known: Known) -> tuple[int, ...]:
    """Return the smallest size that was fast enough, and before it the next that was too slow where there is one."""
    chosen = fastest_fit(known)
    assert chosen is not None
    slower = max((size for size in known.rates if size < chosen), default=None)
    return (chosen,) if slower is None else (slower, chosen)


def _look_below(known: Known, num_between: int) -> tuple[int, ...]:
    """Return new sizes below the smallest that was fast enough, evenly from the next that was too slow by ratio."""
    *slower, chosen = _around(known)
    low = slower[0] if slower else chosen / GROWTH**2
    ratios = [(part + 1) / (num_between + 1) for part in range(num_between)]
    sizes = {known.bounds.clamp(low * (chosen / low) ** ratio) for ratio in ratios}
    tried = {trial.microbatch for trial in known.trials} | set(known.rates)
    is_apart = not slower or chosen >= NEAR**2 * slower[0]
    return tuple(sorted(size for size in sizes if is_apart and size < chosen and size not in tried))
