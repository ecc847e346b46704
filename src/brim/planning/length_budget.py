"""How many samples of a length fit in a batch, from what was measured or predicted at a few lengths.

Two assumptions can fill the gaps between the measured lengths:

- Memory does not fall as samples get longer. Then a sample may always be counted as one of the next measured length.
- Memory is `fixed + samples × bytes of a sample`, and the bytes of a sample are convex over its length, as those of
  a transformer are (a linear part and, without fused attention, a quadratic one). Then the bytes between two measured
  lengths lie at or below the straight line between them, and a batch of the harmonic mean of the two sizes, weighted
  by the distance, fits as well.

Beyond the longest measured length nothing is known, and below the shortest only that its size still fits.

Both hold for what tensors take, and nearly so for what torch's allocator takes on top: it serves some shapes worse than
others, so that 127 tokens may take a little more than 128. A margin is kept for that.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

from brim.errors import InputError
from brim.planning.lengths import check_count

# The share of the measured sizes left unused, for lengths that the allocator serves worse than the measured ones.
# Source: `budgets` and `epochs` in benchmarks/results/batching.json.
MARGIN = 0.1


class Budget(Protocol):
    """How many samples fit in a batch, by the length of the longest."""

    @property
    def longest(self) -> int:
        """The longest sample that fits at all."""
        ...

    def largest_at(self, length: int) -> int:
        """Return the most samples of a length that fit; at least 1 up to `longest`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBudget:
    """So many tokens in a batch, padding included.

    >>> TokenBudget(max_tokens=4096).largest_at(1000)
    4
    """

    max_tokens: int
    max_samples: int | None = None

    @property
    def longest(self) -> int:
        """The longest sample that fits at all."""
        return self.max_tokens

    def largest_at(self, length: int) -> int:
        """Return the most samples of a length that fit."""
        return _at_most(self.max_tokens // length, self.max_samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBudget:
    """The largest microbatch of each of a few lengths, and what follows for the others.

    Attributes:
        lengths: The measured lengths, ascending.
        sizes: The largest microbatch of each, never rising.
        interpolate: Whether the bytes of a sample are taken to be convex over its length.

    >>> budget = MeasuredBudget(lengths=(256, 512), sizes=(60, 20), interpolate=False)
    >>> [budget.largest_at(length) for length in (100, 256, 257, 384, 512)]
    [60, 60, 20, 20, 20]
    >>> budget = MeasuredBudget(lengths=(256, 512), sizes=(60, 20), interpolate=True)
    >>> [budget.largest_at(length) for length in (100, 256, 257, 384, 512)]
    [60, 60, 59, 30, 20]
    """

    lengths: tuple[int, ...]
    sizes: tuple[int, ...]
    interpolate: bool
    max_samples: int | None = None

    @property
    def longest(self) -> int:
        """The longest sample that fits at all."""
        return self.lengths[-1]

    def largest_at(self, length: int) -> int:
        """Return the most samples of a length that fit."""
        right = bisect_left(self.lengths, length)
        size = self.sizes[right]
        if self.interpolate and right > 0:
            before, after = length - self.lengths[right - 1], self.lengths[right] - length
            larger = self.sizes[right - 1]
            size = size * larger * (before + after) // (after * size + before * larger)
        return _at_most(size, self.max_samples)


def make_budget(
    *,
    largest: Mapping[int, int] | Iterable[Any] | None,
    max_tokens: int | None,
    max_samples: int | None = None,
    interpolate: bool = False,
    margin: float | None = None,
) -> Budget:
    """Return the budget that a user described, by `largest` or by `max_tokens`."""
    if (largest is None) == (max_tokens is None):
        raise InputError(
            "Pass either `largest`, e.g. {256: 60, 512: 20} or what brim.find returned, or `max_tokens`, e.g. 16384."
        )
    if max_samples is not None:
        check_count("max_samples", max_samples)
    if max_tokens is not None:
        if interpolate or margin is not None:
            raise InputError(
                "interpolate and margin are for `largest`; `max_tokens` is taken as it is. Leave them out."
            )
        return TokenBudget(max_tokens=check_count("max_tokens", max_tokens), max_samples=max_samples)
    margin = MARGIN if margin is None else margin
    if not 0 <= margin < 1:
        raise InputError(f"margin is {margin}. Use a share of at least 0 and below 1, e.g. 0.1.")
    points = sorted(_points(largest).items())
    # What is measured for a length holds for a shorter one, so sizes that rise are noise: take the smaller.
    falling = accumulate((size for _, size in points), min)
    fitting = [(length, size) for (length, _), size in zip(points, falling, strict=True) if size > 0]
    if not fitting:
        raise InputError("`largest` holds no length of which even one sample fits. Measure shorter ones.")
    lengths = tuple(length for length, _ in fitting)
    sizes = tuple(max(1, int(size * (1 - margin))) for _, size in fitting)
    return MeasuredBudget(lengths=lengths, sizes=sizes, interpolate=interpolate, max_samples=max_samples)


def _points(largest: Mapping[int, int] | Iterable[Any] | None) -> dict[int, int]:
    """Return the largest microbatch of each length, 0 where nothing fits."""
    if isinstance(largest, Mapping):
        return {
            check_count("A length in `largest`", length): check_count(f"largest[{length}]", size or 0, least=0)
            for length, size in largest.items()
        }
    if isinstance(largest, str) or not isinstance(largest, Iterable):
        raise InputError(
            f"`largest` is {largest!r}. Use e.g. {{256: 60, 512: 20}}, what brim.find returned, or a list of "
            "brim.predict's answers."
        )
    points: dict[int, int] = {}
    for answer in largest:
        length, size = _answer(answer)
        points[length] = min(size, points.get(length, size))
    return points


def _answer(answer: Any) -> tuple[int, int]:
    """Return the length and the size of a finding or a prediction; of a prediction, the lower bound."""
    if not hasattr(answer, "case"):
        raise InputError(f"{answer!r} in `largest` is neither a finding nor a prediction. Or use {{256: 60, 512: 20}}.")
    if len(answer.case) != 1:
        raise InputError(
            f"Which name of the case {str(answer.case)!r} is the length? Say so with e.g. "
            "largest={finding.case['seq_len']: finding.microbatch for finding in findings}."
        )
    ((name, length),) = answer.case.items()
    size = answer.interval[0] if hasattr(answer, "interval") else answer.microbatch
    return check_count(f"The case's {name}", length), size or 0


def _at_most(size: int, max_samples: int | None) -> int:
    return size if max_samples is None else min(size, max_samples)
