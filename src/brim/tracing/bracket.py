"""The largest size that fits: by halving where a size costs nothing, in few sizes where each costs a trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from brim.searching.curve import curve_through

# How many sizes closing a bracket may cost, once there is one.
_MOST_SIZES = 8
# How far apart the ends of a bracket may be in the end, as a share: small answers are exact, large ones to 0.4%.
_CLOSE = 1 / 256
# How far one stride may go beyond the largest size that is known to fit, as a ratio.
_STRIDE = 16
# By how much a step away from an end grows each time that the same end has moved again.
_GALLOP = 8
# How far below a size that does not fit, although its tensors alone would, the next one lies at most, as a share.
_STEP_BACK = 1 / 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Bracket:
    """Where sizes stop to fit.

    Attributes:
        largest: The largest that is known to fit; 0 where none does.
        above: The smallest that is known not to; None where the cap fits.
    """

    largest: int
    above: int | None


def halve(fits: Callable[[int], bool], *, cap: int, cannot: Callable[[int], bool] = lambda size: False) -> Bracket:
    """Find where sizes up to `cap` stop to fit, exactly, by doubling and then halving the step.

    Args:
        fits: Returns whether a size fits, and takes its time.
        cap: The largest size to look at.
        cannot: Returns at once whether a size is far too large: so the doubled sizes are looked at from above.

    >>> halve(lambda size: size <= 23, cap=64)
    Bracket(largest=23, above=24)
    """
    high = 1
    while high < cap and not cannot(high):
        high *= 2
    if high >= cap:
        high = cap
        if not cannot(cap) and fits(cap):
            return Bracket(largest=cap, above=None)
    low = _doubled_below(high)
    while low and not fits(low):
        low, high = low // 2, low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return Bracket(largest=low, above=high)


def _doubled_below(size: int) -> int:
    """Return the largest power of two below a size; 0 below 1."""
    return 1 << (size - 1).bit_length() - 1 if size > 1 else 0


def close_in(
    needed_bytes: Callable[[int], int],
    *,
    known: Mapping[int, int],
    capacity_bytes: int,
    cap: Callable[[], int],
    start: int | None = None,
) -> Bracket:
    """Find where sizes stop to fit; both ends of the bracket were asked for, no size is guessed from others.

    What other sizes needed says where to ask next: bytes beyond the fixed ones grow as a power of the size.

    Args:
        needed_bytes: Returns what a size needs: more than the capacity where it does not fit, by just one byte where
            its tensors would.
        known: What some sizes are known to need.
        capacity_bytes: What there is.
        cap: Returns the largest size to ask for, which may change with what is known.
        start: Where to ask first.

    >>> close_in(lambda size: size**2, known={4: 16, 6: 36}, capacity_bytes=10_100, cap=lambda: 1000)
    Bracket(largest=100, above=101)
    """
    points = dict(known)
    num_asked = num_closing = streak = 0
    while True:
        above = min((size for size, needed in points.items() if needed > capacity_bytes), default=None)
        low = max((size for size in points if above is None or size < above), default=0)
        if above is None and low >= cap():
            return Bracket(largest=low, above=None)
        if above is not None and (above - low <= max(1, low * _CLOSE) or num_closing >= _MOST_SIZES):
            return Bracket(largest=low, above=above)
        size = start if start is not None and num_asked == 0 else _estimate(points, low, above, capacity_bytes)
        margin = _GALLOP ** max(0, abs(streak) - 1)
        if above is None:
            size = min(max(size, low + margin), cap())
        else:
            margin = min(margin, (above - low) // 2)
            size = min(max(size, low + margin), above - margin)
        points[size] = needed_bytes(size)
        num_asked += 1
        num_closing += above is not None
        moved = 1 if points[size] <= capacity_bytes else -1
        streak = streak + moved if streak * moved > 0 else moved


def _estimate(points: Mapping[int, int], low: int, above: int | None, capacity_bytes: int) -> int:
    """Return where what is needed is expected to pass the capacity."""
    if low == 0:
        return 1 if above is None else above // 2
    fixed_bytes = max(0.0, min(curve_through(points).bytes_at(0), min(points.values()) - 1))
    goal_bytes, low_bytes = max(1.0, capacity_bytes - fixed_bytes), max(1.0, points[low] - fixed_bytes)
    if above is None:
        return int(min(low * goal_bytes / low_bytes, low * _STRIDE))
    middle = (low + above) // 2
    if points[above] == capacity_bytes + 1:
        return max(middle, int(above * (1 - _STEP_BACK)))  # it is fragmented: by how much, its bytes do not say
    high_bytes = points[above] - fixed_bytes
    if high_bytes <= low_bytes:
        return middle
    share = math.log(goal_bytes / low_bytes) / math.log(high_bytes / low_bytes)
    return int(low * (above / low) ** min(1.0, max(0.0, share)))
