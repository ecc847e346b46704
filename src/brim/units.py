"""Bytes, seconds, rates and counts as people write them."""

from __future__ import annotations

import math
import re

from brim.errors import InputError

_BYTES_PER_UNIT = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SECONDS_PER_UNIT = {"": 1.0, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
# A number without a unit below this is more likely one of GiB than of bytes: no job is that small.
_LEAST_BARE_BYTES = 2**20
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(text: str | int | float) -> int:
    """Read a number of bytes; one without a unit must be at least a MiB.

    >>> parse_bytes("1.5GiB"), parse_bytes("8 GB"), parse_bytes(2**31)
    (1610612736, 8000000000, 2147483648)
    """
    example = "8GiB, 512MiB, 24GB"
    value = _parse(text, _BYTES_PER_UNIT, what="memory size", example=example)
    if not 1 <= value < 2**63:
        raise InputError(f"Memory size {text!r} is out of range. Use for example {example}.")
    if value < _LEAST_BARE_BYTES and not str(text).strip()[-1].isalpha():
        raise InputError(f"Memory size {text!r} has no unit. Use for example {example}, or {text}GiB.")
    return int(value)


def format_bytes(num_bytes: int | float) -> str:
    """Write a number of bytes with a binary unit and three digits.

    >>> format_bytes(1610612736), format_bytes(52_428_800), format_bytes(12)
    ('1.50 GiB', '50.0 MiB', '12 B')
    """
    return _with_unit(num_bytes, (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)))


def format_gigabytes(num_bytes: int | float) -> str:
    """Write a number of bytes with a decimal unit, in which bytes per parameter are easy to follow.

    >>> format_gigabytes(16_060_522_496), format_gigabytes(1.875e9), format_gigabytes(524_288)
    ('16.1 GB', '1.88 GB', '524 KB')
    """
    return _with_unit(num_bytes, (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3)))


def parse_seconds(text: str | int | float) -> float:
    """Read a time span.

    >>> parse_seconds("90"), parse_seconds("2min"), parse_seconds("250ms")
    (90.0, 120.0, 0.25)
    """
    value = _parse(text, _SECONDS_PER_UNIT, what="time", example="90, 90s, 2min")
    if value <= 0:
        raise InputError(f"Time {text!r} must be above zero. Use for example 90, 90s, 2min.")
    return value


def format_seconds(seconds: float) -> str:
    """Write a time span in the unit that fits it.

    >>> format_seconds(0.0123), format_seconds(1.53), format_seconds(75)
    ('12 ms', '1.53 s', '1 min 15 s')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def format_rate(per_second: float) -> str:
    """Write how many a second, with at least three digits and never as a power of ten.

    >>> format_rate(0.0412), format_rate(41.23), format_rate(23_030.4)
    ('0.0412', '41.2', '23,030')
    """
    if per_second >= 1000:
        return f"{per_second:,.0f}"
    if per_second >= 10:
        return f"{per_second:.1f}"
    digits = 2 if per_second >= 1 or per_second <= 0 else 2 - math.floor(math.log10(per_second))
    return f"{per_second:.{digits}f}"


def format_count(number: int, name: str) -> str:
    """Write how many there are of something.

    >>> format_count(1, "rank"), format_count(1200, "rank")
    ('1 rank', '1,200 ranks')
    """
    return f"{number:,} {name}" if number == 1 else f"{number:,} {name}s"


def _with_unit(num_bytes: int | float, units: tuple[tuple[str, int], ...]) -> str:
    for unit, size in units:
        if abs(num_bytes) >= size:
            value = num_bytes / size
            digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
            return f"{value:.{digits}f} {unit}"
    return f"{int(num_bytes)} B"


def _parse(text: str | int | float, per_unit: dict[str, int] | dict[str, float], *, what: str, example: str) -> float:
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise InputError(f"{text!r} is not a {what}. Use for example {example}.")
    if isinstance(text, (int, float)):
        value, unit = float(text), ""
    else:
        match = _QUANTITY.fullmatch(text)
        if match is None or match[2].lower() not in per_unit:
            raise InputError(f"{text!r} is not a {what}. Use for example {example}.")
        value, unit = float(match[1]), match[2].lower()
    if not math.isfinite(value):
        raise InputError(f"{text!r} is not a {what}. Use for example {example}.")
    return value * per_unit[unit]
