"""A dataset's lengths as a few buckets to measure, and the order in which their batches are tried together."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from brim.errors import InputError
from brim.planning.lengths import as_lengths

# Every bucket reaches to half the next longer one's length, so a sample counts as at most twice as long as it is.
_RATIO = 2
_MOST_BUCKETS = 6
# How often each bucket comes in the shuffled part of a mix: twice, so that it follows on different ones.
_NUM_ROUNDS = 2


def bucket_edges(lengths: Iterable[int]) -> list[int]:
    """Return the longest length of each bucket that holds samples, ascending; the last is the longest of all.

    >>> bucket_edges([3, 4, 90, 100, 37])
    [4, 50, 100]
    """
    checked = sorted(set(as_lengths(lengths)))
    edges = [checked[-1]]
    while len(edges) < _MOST_BUCKETS and edges[-1] > checked[0]:
        edges.append(-(-edges[-1] // _RATIO))
    below = [*edges[1:], 0]
    return [
        edge
        for edge, shorter in zip(edges[::-1], below[::-1], strict=True)
        if any(shorter < length <= edge for length in checked)
    ]


def mix_order(edges: Sequence[int], *, seed: int = 0) -> list[int]:
    """Return the buckets in the order that tries memory hardest: longest, shortest, then all of them shuffled.

    >>> order = mix_order([64, 128, 256])
    >>> order[:2], sorted(order[2:])
    ([256, 64], [64, 64, 128, 128, 256, 256])
    """
    shuffled = list(edges) * _NUM_ROUNDS
    random.Random(seed).shuffle(shuffled)
    return [max(edges), min(edges), *shuffled]


def read_lengths(path: Path) -> list[int]:
    """Read lengths from a file: whole numbers between white space, or a JSON list of them."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"The lengths in {path} cannot be read: {error}.") from error
    try:
        values = json.loads(text) if text.lstrip().startswith("[") else [int(word) for word in text.split()]
    except ValueError as error:
        raise InputError(
            f"The lengths in {path} are not whole numbers ({error}). Write one on each line, or a JSON list."
        ) from error
    return list(as_lengths(values))
