"""Numbers as charts and tables write them: one unit of memory for an axis, sizes with their commas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from brim.units import format_bytes, format_rate

_UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The unit of an axis of memory."""

    name: str
    num_bytes: int

    def of(self, num_bytes: int | float) -> float:
        """Return bytes in this unit."""
        return round(num_bytes / self.num_bytes, 6)


def unit_for(sizes: Iterable[int | float]) -> Unit:
    """Return the largest unit in which the largest size is at least 1.

    >>> unit_for([3 * 2**20, 5 * 2**30]).name
    'GiB'
    """
    most = max(sizes, default=0)
    name, num_bytes = next((unit for unit in _UNITS if most >= unit[1]), _UNITS[-1])
    return Unit(name=name, num_bytes=num_bytes)


def memory(num_bytes: int | float | None) -> str:
    """Write bytes, or a dash where they are not known."""
    return "–" if num_bytes is None else format_bytes(num_bytes)


def count(number: int | None) -> str:
    """Write a number with commas, or a dash where it is not known."""
    return "–" if number is None else f"{number:,}"


def rate(samples_per_second: float | None) -> str:
    """Write samples per second, or a dash where they are not known.

    >>> rate(41.23), rate(None)
    ('41.2', '–')
    """
    return "–" if samples_per_second is None else format_rate(samples_per_second)


def plain(value: Any) -> str:
    """Write any value of a document."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return (
        "–" if value is None else f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    )
