"""The lengths of a dataset's samples, checked, and how much of a batch of them is padding."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from brim.errors import InputError, LengthError


def as_lengths(lengths: Iterable[int]) -> array[int]:
    """Return lengths as an array of whole numbers of at least 1; a list, an array or a tensor will do.

    >>> as_lengths([3, 5, 2])
    array('q', [3, 5, 2])
    """
    # A tensor's or an array's own conversion is a hundred times faster than iterating over it.
    values = lengths.tolist() if hasattr(lengths, "tolist") else list(lengths)
    try:
        checked = array("q", values)
    except (TypeError, OverflowError):
        index, value = next((i, v) for i, v in enumerate(values) if not _is_whole(v))
        raise InputError(
            f"The length at index {index} is {value!r}, not a whole number. Count tokens, frames or milliseconds."
        ) from None
    if not checked:
        raise InputError("There are no lengths. Pass one for every sample of the dataset.")
    shortest = min(checked)
    if shortest < 1:
        index = checked.index(shortest)
        raise InputError(f"The length at index {index} is {shortest}. Leave empty samples out of the dataset.")
    return checked


def check_longest(lengths: array[int], longest: int, *, remedy: str) -> None:
    """Refuse samples above the longest length that fits, by their index."""
    if max(lengths) <= longest:
        return
    above = [index for index, length in enumerate(lengths) if length > longest]
    others = f" It is the first of {len(above):,} such samples." if len(above) > 1 else ""
    raise LengthError(
        f"The sample at index {above[0]} has length {lengths[above[0]]:,}, above the {longest:,} that fit.{others} "
        f"Shorten it, leave it out, or {remedy}.",
        indices=tuple(above),
        longest=longest,
    )


def check_count(name: str, value: Any, *, least: int = 1) -> int:
    """Return a whole number of at least `least`, or say that `name` is none."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} is {value!r}. Use a whole number of at least {least}.")
    return value


def padding_efficiency(lengths: Sequence[int], batches: Iterable[Sequence[int]]) -> float:
    """Return the share of tokens that is no padding, where each batch is padded to its longest sample.

    >>> padding_efficiency([3, 5, 2], [[0, 1], [2]])
    0.8333333333333334
    """
    num_real = num_padded = 0
    for batch in batches:
        of_batch = [lengths[index] for index in batch]
        num_real += sum(of_batch)
        num_padded += len(of_batch) * max(of_batch)
    return num_real / num_padded


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and -(2**63) <= value < 2**63
