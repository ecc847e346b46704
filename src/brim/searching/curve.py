"""Predicted memory as a function of the microbatch: a few traced sizes, straight lines between them.

The peak of a step is the largest of several moments' live bytes, each affine in the microbatch, so the curve bends
upwards: a line through two neighbouring points is exact inside one moment's reign and never promises too little
memory outside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# The sizes traced first, in samples: neither is 1, which code likes to treat apart, and they tell fixed from growing.
_FIRST_SIZES = (8, 32)
# How far the goal may be from a traced size, and how far apart the sizes around it may lie, as ratios.
NEAR_GOAL = 1.08
_CLOSE_NEIGHBOURS = 2
# How far a size may lie from the line through two others and still be on it, as a share.
_STRAIGHT = 0.002
# How far one stride may go past the last traced size, as ratios: a flat start says nothing of the rise to come.
_STRIDES = (8, 64)


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """Traced bytes at a few microbatches, in rising order."""

    points: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        assert self.points
        sizes = [size for size, _ in self.points]
        assert sizes == sorted(set(sizes))

    def bytes_at(self, microbatch: int) -> float:
        """Return the bytes at a microbatch, on the line through its two neighbours.

        >>> MemoryCurve(((1, 100), (3, 120), (5, 180))).bytes_at(4)
        150.0
        """
        if len(self.points) == 1:
            return float(self.points[0][1])
        (low, low_bytes), (high, high_bytes) = self._segment(microbatch)
        return low_bytes + (high_bytes - low_bytes) * (microbatch - low) / (high - low)

    def size_at(self, num_bytes: float, *, cap: int) -> int:
        """Return the largest microbatch up to `cap` whose bytes are at most `num_bytes`; 0 where none is.

        >>> MemoryCurve(((1, 100), (3, 120), (5, 180))).size_at(160, cap=64)
        4
        """
        if self.bytes_at(cap) <= num_bytes:
            return cap
        low, high = 0, cap
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.bytes_at(middle) <= num_bytes else (low, middle)
        return low

    def _segment(self, microbatch: int) -> tuple[tuple[int, int], tuple[int, int]]:
        for left, right in zip(self.points, self.points[1:], strict=False):
            if microbatch <= right[0]:
                return left, right
        return self.points[-2], self.points[-1]


def next_to_trace(
    points: Mapping[int, int], *, target_bytes: float, cap: int, near: float = NEAR_GOAL
) -> tuple[int, ...]:
    """Return the next microbatches to trace, two where both help, so that the curve is good near `target_bytes`.

    It starts with two sizes and goes to where the curve meets the target, until that place lies close to sizes
    that were traced: no further than the ratio `near` from one of them.

    >>> next_to_trace({8: 800, 32: 3200}, target_bytes=9600, cap=1000)
    (96,)
    """
    if not points:
        return _new(_FIRST_SIZES if cap > 1 else (1,), points, cap)
    if len(points) == 1:
        ((size, _),) = points.items()
        return _new((size - 1, size + 1), points, cap)[:1]
    sizes = sorted(points)
    goal = max(1, curve_through(points).size_at(target_bytes, cap=cap))
    if goal > sizes[-1] * _STRIDES[-1]:
        return _new(tuple(sizes[-1] * stride for stride in _STRIDES), points, cap)
    left, right = _neighbours(sizes, goal)
    nearby = [size for size in sizes if goal <= near * size and size <= near * goal]
    if not nearby:
        return _new((goal,), points, cap)
    if right > left * _CLOSE_NEIGHBOURS and not _is_straight(points, sizes, nearby[0]):
        # The curve bends between the goal and its far neighbour: the slope there needs a second size nearby.
        return _new((goal * 3 // 4,), points, cap)
    return ()


def _is_straight(points: Mapping[int, int], sizes: list[int], size: int) -> bool:
    """Return whether a traced size lies on the line through the two before it."""
    index = sizes.index(size)
    if index < 2:
        return False
    before = MemoryCurve(tuple((size, points[size]) for size in sizes[index - 2 : index]))
    return abs(before.bytes_at(size) - points[size]) <= _STRAIGHT * points[size]


def _new(sizes: tuple[int, ...], points: Mapping[int, int], cap: int) -> tuple[int, ...]:
    """Return those of the sizes that can be traced and were not."""
    return tuple(sorted({min(size, cap) for size in sizes if size >= 1} - set(points)))


def _neighbours(sizes: list[int], goal: int) -> tuple[int, int]:
    """Return the two traced sizes whose line gives the curve at `goal`."""
    right = next((size for size in sizes[1:] if size >= goal), sizes[-1])
    return sizes[sizes.index(right) - 1], right


def curve_through(points: Mapping[int, int]) -> MemoryCurve:
    """Return the curve through traced points in any order."""
    return MemoryCurve(tuple(sorted(points.items())))
