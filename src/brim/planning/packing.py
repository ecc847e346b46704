"""Packing samples into rows of a fixed number of tokens, first-fit decreasing."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import accumulate

from brim.planning.lengths import as_lengths, check_count, check_longest


def pack(lengths: Iterable[int], capacity: int) -> list[list[int]]:
    """Pack samples into as few rows of `capacity` tokens as first-fit decreasing finds, in n log n time.

    Every sample, the longest first, goes into the first row that has room for it. That needs at most 11/9 of the
    fewest rows possible, and one more.

    Args:
        lengths: The length of every sample.
        capacity: The tokens of a row.

    Returns:
        The indices of the samples in each row.

    Raises:
        LengthError: A sample is longer than a row.

    >>> pack([4, 8, 1, 4, 2, 1], 10)
    [[1, 4], [0, 3, 2, 5]]
    """
    check_count("capacity", capacity)
    checked = as_lengths(lengths)
    check_longest(checked, capacity, remedy="use longer rows")
    rows: list[list[int]] = []
    room: list[int] = []
    fitting: list[int] = []  # a heap of the rows with room for the length at hand
    waiting: dict[int, list[int]] = {}  # the other rows, by their room
    largest_rooms: list[int] = []  # a heap of the negated keys of `waiting`
    for index in sorted(range(len(checked)), key=checked.__getitem__, reverse=True):
        length = checked[index]
        while largest_rooms and -largest_rooms[0] >= length:
            for row in waiting.pop(-heappop(largest_rooms)):
                heappush(fitting, row)
        if not fitting:
            heappush(fitting, len(rows))
            rows.append([])
            room.append(capacity)
        row = fitting[0]
        rows[row].append(index)
        room[row] -= length
        if room[row] < length:
            heappop(fitting)
            if room[row] not in waiting:
                waiting[room[row]] = []
                heappush(largest_rooms, -room[row])
            waiting[room[row]].append(row)
    return rows


def cu_seqlens(lengths: Iterable[int]) -> list[int]:
    """Return where each sequence of a packed row begins, and where the last one ends.

    >>> cu_seqlens([3, 5, 2])
    [0, 3, 8, 10]
    """
    return list(accumulate(lengths, initial=0))
