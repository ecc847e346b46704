"""Fit measured peaks against what is known, jump to the size that should just fit, refine.

What is known is a curve of traced bytes where the workload can be traced, else the microbatch itself. Measured peaks
are taken to be a straight line over it: `peak = fixed + slope × curve(microbatch)`. The slope is what tracing cannot
see: scratch inside kernels and what the allocator wastes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from brim.searching.curve import MemoryCurve, curve_through
from brim.searching.known import Known

# The search ends when the peak is within this share of the limit, and aims for half of it. Where equal runs differ by
# more, it aims for as much as they differ by: the next size would gain less than that and as likely fail as fit, and an
# answer that fitted by luck would fail in the user's own run.
CLOSE_ENOUGH = 0.01
# Which share of the limit a first probe leaves free where equal runs hardly differ. Source: `benchmarks/guided.py`,
# where first probes of nets whose kernels took as much at half of a size as at the whole needed up to 0.43% more than
# was expected.
FIRST_FREE = 0.0045
# By how much what the heap wastes differs between equal runs, as a share of it, where that is more than the noise.
# Source: `benchmarks/guided.py`, where sizes that ran twice differed by up to a third of it.
WASTE_NOISE = 0.25
# Where equal runs differ, a search ends within so many times what is left free for that: a larger size would only be
# one more chance of an OOM. Source: `benchmarks/guided.py`, where two runs of one size differed by up to 11% of it.
NOISY_CLOSE = 5
# There a size that fitted with room to spare may have had luck, so the next goes this share of the way that is left;
# and so it does after a first size that shows the trace to be wrong.
CAREFUL_STEP = 0.5
# After an OOM that the line did not foresee, the next size lies this share below the one that failed; after every
# other nearby, so many times the share of the last.
STEP_BACK = 0.04
STEP_GROWTH = 3
# How far above a size that failed another counts as nearby, as a ratio.
NEARBY = 1.25
# Measured bytes per traced byte before anything was measured, where the real allocator was not asked.
# Source: largest of what benchmarks/workloads.py and benchmarks/gpt2.py showed near limits of 0.75 to 1.5 GiB.
LIVE_SLOPE = 1.25
# The same before the allocator was asked near the limit, only to know where to ask it: where tensors lie in its heap,
# and where each has a mapping of its own, of whole pages.
HEAP_SLOPE = 1.2
MAPPED_SLOPE = 1.01
# More than this at the smallest size, as a ratio, is no waste but what a process takes once, however large the batch:
# at larger sizes, as much of it is none either.
MOST_WASTE = 2.0
# Live bytes are backed by real ones, so a process that takes less than this share of what was traced shows that the
# trace counted what does not run: all that values could select, or the larger of two branches.
COUNTED_TOO_MUCH = 0.9
# From which ratio on a larger size is worth a probe although the limit is near: where weights fill most of it, what is
# left may hold many times the batch.
WORTH_A_PROBE = 1.25
# How far beyond the largest traced size memory is expected to grow as it does on average, as a ratio.
_BEYOND = 64
# Between sizes further apart than this, as a ratio, the next is their geometric mean.
FAR_APART = 2
# Without a curve no size is more than so many times the last that fitted, since nobody knows where the line bends.
# Without a slope, the next size is this many times the last while memory is less than half full, else twice.
GROWTH = 8
# While nothing fits, the slope is taken to be this many times steeper, then this to the power of 4, of 13, of 40, …
STEEPER = 1.1
# The same without a curve: each probe tries one part in this many of the last.
STEP_DOWN = 16


def expected_curve(traced: Mapping[int, int], *, waste: Mapping[int, int], unasked: float) -> MemoryCurve:
    """Return the bytes to expect of a process before anything was measured, on lines between the sizes traced.

    What the allocator wastes differs from size to size and run to run. Where a size needed less than a smaller one,
    both are expected to need what lies between.

    Args:
        traced: Traced bytes by microbatch.
        waste: What the allocator took beside them, where it was asked.
        unasked: Bytes to expect for each traced one beyond the largest size.

    >>> expected_curve({8: 100, 32: 400}, waste={8: 40, 32: 100}, unasked=1.2).points[:2]
    ((8, 140), (32, 500))
    """
    sizes = sorted(traced)
    once_bytes = 0.0
    if waste:
        smallest = min(waste)
        once_bytes = max(0.0, waste[smallest] - (MOST_WASTE - 1) * traced[smallest])

    def wasted(size: int) -> float:
        return max(min(waste.get(size, 0), (MOST_WASTE - 1) * traced[size]), waste.get(size, 0) - once_bytes)

    seen = [traced[size] + wasted(size) for size in sizes]
    most, least = accumulate(seen, max), [*accumulate(reversed(seen), min)][::-1]
    expected = {size: int((high + low) / 2) for size, high, low in zip(sizes, most, least, strict=True)}
    largest = sizes[-1]
    beyond = _BEYOND * largest
    more_bytes = curve_through(traced).bytes_at(beyond) - traced[largest]
    return curve_through({**expected, beyond: int(expected[largest] + unasked * max(0.0, more_bytes))})


def first_aim(limit_bytes: int, noise: float) -> float:
    """Return the peak to aim for before anything has fitted.

    Where equal runs differ it is the middle of where a search ends: one that is out of memory costs more than one that
    leaves a little free. Elsewhere it is nearer to the limit, since sizes round down.

    Args:
        limit_bytes: The peak that must not be passed.
        noise: By how much the peaks of equal runs differ on the device, as a share of the limit.

    >>> first_aim(1000, 0.002), first_aim(1000, 0.025)
    (995.5, 937.5)
    """
    return (1 - (NOISY_CLOSE / 2 * noise if _is_noisy(noise) else FIRST_FREE)) * limit_bytes


def _is_noisy(noise: float) -> bool:
    """Whether equal runs differ by more than the search cares for, as on glibc's heap."""
    return noise > CLOSE_ENOUGH


@dataclass(frozen=True, slots=True, kw_only=True)
class Guided:
    """Jump to where the fitted line meets the limit.

    Attributes:
        limit_bytes: The peak that must not be passed.
        baseline_bytes: What the process holds before the workload is built.
        curve: Traced bytes over the microbatch, or None where the workload cannot be traced.
        first_slope: Measured bytes per byte of the curve, before anything was measured.
        expected: What a process is expected to need with what the heap wastes, where the heap was asked; beside the
            baseline.
        noise: By how much the peaks of equal runs differ on the device, as a share of the limit.
    """

    limit_bytes: int
    baseline_bytes: int = 0
    curve: MemoryCurve | None = None
    noise: float = 0.0
    first_slope: float = LIVE_SLOPE
    expected: MemoryCurve | None = None
    name: str = "guided"

    def propose(self, known: Known) -> int | None:
        """Return the size that should just fit, or None when no larger one is worth a probe."""
        bounds, low, high = known.bounds, known.largest_fit, known.smallest_oom
        if not known.trials:
            largest = self.predicted_largest(bounds.cap)
            return bounds.smallest if largest is None else bounds.clamp(largest)
        if low is None:
            return self._step_down(known)
        if low == bounds.largest or (high is not None and high - low <= self._resolution(known, high)):
            return None
        margin = self._margin(known)
        close = (NOISY_CLOSE if self._is_noisy else 2) * margin
        aim = (1 - margin) * self.limit_bytes
        is_close = dict(known.peaks).get(low, 0) >= (1 - close) * self.limit_bytes
        if is_close and self._room(known, low, aim) < WORTH_A_PROBE * low:
            return None
        is_overcounted = self._is_overcounted(known, low)
        most = self._reach(known, low, self.limit_bytes, slope=None if is_overcounted else 1.0)
        if most < low + bounds.multiple_of:
            return None  # the traced bytes alone, without any waste, would not fit
        if is_overcounted and self._measured_slope(dict(known.peaks)) is not None:
            aim = min(aim, self._first_aim)
        elif is_overcounted or (self._is_noisy and self.curve is not None):
            aim -= (1 - CAREFUL_STEP) * (aim - dict(known.peaks).get(low, aim))
        target = bounds.clamp(self._room(known, low, aim))
        if high is not None and target >= high:
            target = self._below(known, low, high)
        elif target <= low:
            target = bounds.clamp((low + min(most, high or most)) // 2)
        return max(target, low + bounds.multiple_of)

    def predicted_peak(self, microbatch: int) -> int | None:
        """Return the peak expected before anything was measured, or None without a curve."""
        if self.curve is None:
            return None
        return int(self.baseline_bytes + self.first_slope * self.curve.bytes_at(microbatch))

    def live_bytes(self, microbatch: int) -> int | None:
        """Return the traced bytes of a microbatch, or None without a curve."""
        return None if self.curve is None else int(self.curve.bytes_at(microbatch))

    def predicted_largest(self, cap: int) -> int | None:
        """Return the largest microbatch expected to fit before anything was measured, or None without a curve."""
        if self.curve is None:
            return None
        return self.curve.size_at((self._first_aim - self.baseline_bytes) / self.first_slope, cap=cap)

    @property
    def _first_aim(self) -> float:
        return first_aim(self.limit_bytes, self.noise)

    @property
    def _is_noisy(self) -> bool:
        return _is_noisy(self.noise)

    def _margin(self, known: Known) -> float:
        """Return which share of the limit to leave free: what the next run of a size may need more than the last."""
        margin, peaks, low = max(CLOSE_ENOUGH / 2, self.noise), dict(known.peaks), known.largest_fit
        if not self._is_noisy or self.curve is None or low not in peaks:
            return margin
        wasted_bytes = peaks[low] - self.baseline_bytes - self.curve.bytes_at(low)
        return max(margin, WASTE_NOISE * wasted_bytes / self.limit_bytes)

    def _resolution(self, known: Known, size: int) -> float:
        """How close to a size that failed is close enough, in samples: exact where no noise can explain the failure."""
        close = 2 * self._margin(known)
        largest_peak = max((peak for _, peak in known.peaks), default=0)
        is_near_limit = not known.peaks or largest_peak >= (1 - 2 * close) * self.limit_bytes
        return max(known.bounds.multiple_of, close * size if is_near_limit else 0)

    def _below(self, known: Known, low: int, high: int) -> int:
        """The line said that `high` fits and it did not: step back a little, then more, then halve what is left.

        Where there is no line, or one through measured peaks alone that was drawn too far, halve at once. Where equal
        runs differ, stay near to what fitted: another that is out of memory tells nothing new.
        """
        peaks, is_far = dict(known.peaks), high > FAR_APART * low
        if self._is_noisy and not is_far:
            return known.bounds.clamp(low + (high - low) / 3)
        has_line = not is_far and self._measured_slope(peaks) is not None
        if self.curve is not None or has_line or high in peaks:
            num_failed = sum(not trial.fits and trial.microbatch <= NEARBY * high for trial in known.trials)
            stepped_back = known.bounds.clamp(high * (1 - STEP_BACK * STEP_GROWTH ** (num_failed - 1)))
            if stepped_back > low:
                return stepped_back
        return known.bounds.clamp(math.sqrt(low * high) if is_far else (low + high) // 2)

    def _step_down(self, known: Known) -> int | None:
        """Nothing fits yet: assume a steeper slope each time; without a curve go far down, where a fit costs little."""
        high, smallest = known.smallest_oom, known.bounds.smallest
        if high is None or high <= smallest:
            return None
        if self.curve is None:
            return known.bounds.clamp(high // STEP_DOWN)
        slope = self.first_slope * STEEPER ** ((STEP_GROWTH ** _num_failed(known) - 1) // (STEP_GROWTH - 1))
        size = self.curve.size_at((self._first_aim - self.baseline_bytes) / slope, cap=high - 1)
        return known.bounds.clamp(min(size, high - known.bounds.multiple_of))

    def _room(self, known: Known, low: int, goal_bytes: float) -> float:
        return min(self._reach(known, low, goal_bytes), self._reach_evenly(known, low, goal_bytes))

    def _reach(self, known: Known, low: int, goal_bytes: float, *, slope: float | None = None) -> float:
        """Return the size at which the line through what was measured meets `goal_bytes`.

        `slope` is measured bytes per traced byte; None for what was measured at `low`.
        """
        peaks = dict(known.peaks)
        if low not in peaks:
            return float(low * 2)
        cap = known.bounds.cap
        is_overcounted = slope is None and self._is_overcounted(known, low)
        if self.curve is not None and not is_overcounted:
            traced = max(self.curve.bytes_at(low), 1.0)
            if slope is None and self.expected is not None:
                at_low = max(self.expected.bytes_at(low), 1.0)
                scale = max(traced, peaks[low] - self.baseline_bytes) / at_low
                return self.expected.size_at(at_low + (goal_bytes - peaks[low]) / scale, cap=cap)
            if slope is None:
                # Live bytes must be backed by real ones, so a slope below 1 is the allocator's noise.
                slope = max(1.0, (peaks[low] - self.baseline_bytes) / traced)
            return self.curve.size_at(traced + (goal_bytes - peaks[low]) / slope, cap=cap)
        measured = self._measured_slope(peaks)
        if measured is None and is_overcounted:
            measured = self._even_growth(known, low)
        if measured is None:
            return float(low * (GROWTH if peaks[low] < self.limit_bytes / 2 else 2))
        return min(low + (goal_bytes - peaks[low]) / measured, float(GROWTH * low), float(cap))

    def _reach_evenly(self, known: Known, low: int, goal_bytes: float) -> float:
        """Return what would be reached if all that was measured beside the first sample grew evenly with the batch.

        Where equal runs differ, so do the sizes that the heap was asked about, and a line through two of them may be
        flat by chance.
        """
        each_bytes = self._even_growth(known, low)
        if not self._is_noisy or each_bytes is None:
            return math.inf
        return low + (goal_bytes - dict(known.peaks)[low]) / each_bytes

    def _even_growth(self, known: Known, low: int) -> float | None:
        """Return bytes per sample if all that was measured beside the first sample grew evenly; None if nothing did."""
        peak = dict(known.peaks).get(low)
        if self.curve is None or peak is None or low < 2:
            return None
        each_bytes = (peak - self.baseline_bytes - self.curve.bytes_at(1)) / (low - 1)
        return each_bytes if each_bytes > 0 else None

    def _is_overcounted(self, known: Known, low: int) -> bool:
        """Return whether a size that fitted took far less than was traced."""
        peak = dict(known.peaks).get(low)
        if self.curve is None or peak is None:
            return False
        return peak - self.baseline_bytes < COUNTED_TOO_MUCH * self.curve.bytes_at(low)

    def _measured_slope(self, peaks: dict[int, int]) -> float | None:
        """Return bytes per sample through the largest size and the nearest that differs enough to be no noise."""
        *smaller, largest = sorted(peaks)
        for size in reversed(smaller):
            difference = peaks[largest] - peaks[size]
            if difference > CLOSE_ENOUGH * self.limit_bytes:
                return difference / (largest - size)
        return None


def _num_failed(known: Known) -> int:
    return sum(not trial.fits for trial in known.trials)
