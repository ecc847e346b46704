"""Search where equal runs take the same memory to the byte: to the last size that fits, without a confirmation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from brim.searching.known import Known, Trial

# Without a line, the next size is so many times the last.
GROWTH = 8
# Above this many samples a search ends one part in so many below the first size that did not fit, not one sample.
CLOSE_ENOUGH = 256
# Where the line was wrong, steps away from it grow so many times each.
STEP_GROWTH = 4
# The first of these steps back from a size that did not fit is one part in so many of what is left.
STEPS_BACK = 64
# While nothing fits, each size is one part in this many of the last.
STEP_DOWN = 16
# After so many sizes the line has shown that it does not hold, and what is left is halved.
_TRUSTED = 6
# Memory below so full says nothing of where the line through one size would lead.
_ALMOST_FULL = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Exact:
    """Jump along the line through measured peaks, then close in on the first size that does not fit.

    Attributes:
        limit_bytes: The peak that must not be passed.
    """

    limit_bytes: int
    name: str = "exact"

    def propose(self, known: Known) -> int | None:
        """Return the next size, or None when the largest that fits has the next one above it out of memory."""
        bounds, low, high = known.bounds, known.largest_fit, known.smallest_oom
        if not known.trials:
            return bounds.smallest
        if low is None:
            assert high is not None
            return None if high <= bounds.smallest else bounds.clamp(high // STEP_DOWN)
        if low == bounds.largest or (high is not None and high - low <= self._close(known, low)):
            return None
        target = self._target(known, low)
        far = 0 if high is None else (high - low) // STEPS_BACK
        step = max(self._close(known, low), far) * STEP_GROWTH ** self._num_wrong(known)
        if high is None:
            return bounds.clamp(max(target, low + step))
        if target <= low:
            target = low + step
        elif target >= high:
            target = high - step
        if not low < target < high or len(known.trials) > _TRUSTED:
            target = math.isqrt(low * high) if high > 2 * low else (low + high) // 2
        return max(bounds.clamp(target), low + bounds.multiple_of)

    def expects(self, known: Known, asked: int) -> int | None:
        """Return what would be asked next if `asked` took what the line says, to be run at the same time."""
        peaks = dict(known.peaks)
        slope = _slope(peaks)
        peak = None if slope is None else int(peaks[max(peaks)] + slope * (asked - max(peaks)))
        fits = peak is None or peak <= self.limit_bytes
        told = Trial(asked, fits, peak if fits else None)
        following = self.propose(replace(known, trials=(*known.trials, told)))
        return None if following is None or following == asked else following

    def _close(self, known: Known, low: int) -> int:
        step = known.bounds.multiple_of
        return max(step, low // CLOSE_ENOUGH // step * step)

    def _target(self, known: Known, low: int) -> int:
        """Return the size at which the line meets the limit, or a larger one where there is no line yet."""
        peaks = dict(known.peaks)
        slope = _slope(peaks)
        if slope is None:
            is_almost_full = peaks.get(low, 0) > _ALMOST_FULL * self.limit_bytes
            return low * (2 if is_almost_full else GROWTH)
        if slope <= 0:
            return low * GROWTH
        return min(low + int((self.limit_bytes - peaks.get(low, 0)) / slope), known.bounds.cap)

    def _num_wrong(self, known: Known) -> int:
        """Return how many of the last sizes in a row the line was wrong about; it is drawn anew through a fit."""
        sides = [trial.fits for trial in known.trials[2:]]
        num_same = len(sides) - next((i for i in range(len(sides), 0, -1) if sides[i - 1] != sides[-1]), 0)
        return max(0, num_same - (2 if sides and sides[-1] else 1))


def _slope(peaks: dict[int, int]) -> float | None:
    """Return bytes for each sample through the two largest sizes."""
    if len(peaks) < 2:
        return None
    *_, smaller, larger = sorted(peaks)
    return (peaks[larger] - peaks[smaller]) / (larger - smaller)
