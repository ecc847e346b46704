"""Predicted memory as a function of the microbatch: a few traced sizes, straight lines between them.

The peak of a step is the largest of several moments' live bytes, each affine in the microbatch, so the curve bends
upwards: a line through two neighbouring points is exact inside one moment's reign and never promises too little
memory outside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# The size traced first, in samples: large enough that activations, not the optimizer, make the peak of most models.
_FIRST_SIZE = 16
# How far the curve may be extended past the last traced size, and how far apart two traced sizes may lie, as ratios.
_FAR_ENOUGH = 1.25
_CLOSE_NEIGHBOURS = 2
# How far one stride may go past the last traced size, as a ratio.
_LARGEST_STRIDE = 64


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


def next_to_trace(points: Mapping[int, int], *, target_bytes: float, cap: int, most: int) -> int | None:
    """Return the next microbatch to trace so that the curve is good near `target_bytes`, or None when it is.

    It starts with two sizes and goes to where the curve meets the target, until that place lies close to sizes
    that were traced.
    """
    if len(points) >= most:
        return None
    if not points:
        return min(_FIRST_SIZE, cap)
    if len(points) == 1:
        # Where the target would be if all memory grew with the batch; two points then show what does not.
        ((size, num_bytes),) = points.items()
        second = min(max(1, int(size * target_bytes / max(num_bytes, 1))), size * _LARGEST_STRIDE, cap)
        if second != size:
            return second
        return size + 1 if size < cap else (size - 1 or None)
    sizes = sorted(points)
    goal = max(1, curve_through(points).size_at(target_bytes, cap=cap))
    if goal < sizes[0]:
        return goal
    if goal > sizes[-1] * _FAR_ENOUGH:
        # A flat start says nothing of the rise to come: go up in bounded strides.
        return min(goal, sizes[-1] * _LARGEST_STRIDE, cap)
    left, right = _neighbours(sizes, goal)
    if right <= left * _CLOSE_NEIGHBOURS:
        return None
    # A line to a far neighbour hides where the curve bends, so the slope here needs a second size nearby.
    nearby = goal if goal not in points else goal * 3 // 4
    return nearby if nearby >= 1 and nearby not in points else None


def _neighbours(sizes: list[int], goal: int) -> tuple[int, int]:
    """Return the two traced sizes whose line gives the curve at `goal`."""
    right = next((size for size in sizes[1:] if size >= goal), sizes[-1])
    return sizes[sizes.index(right) - 1], right


def curve_through(points: Mapping[int, int]) -> MemoryCurve:
    """Return the curve through traced points in any order."""
    return MemoryCurve(tuple(sorted(points.items())))
