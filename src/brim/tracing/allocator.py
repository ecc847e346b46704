"""CUDA's caching allocator, replayed over a trace: which memory is taken from the driver, reused, split and merged.

The rules are those of c10/cuda/CUDACachingAllocator.cpp for one stream; every constant below is named there.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from brim.tracing.repetition import Repetition

MIB = 2**20
# kMinBlockSize: every request is rounded up to a multiple of it.
ROUND_BYTES = 512
# kSmallSize: the largest request that comes from the small pool.
SMALL_BYTES = MIB
# kSmallBuffer: what the small pool takes from the driver at a time.
SMALL_SEGMENT_BYTES = 2 * MIB
# kLargeBuffer: what the large pool takes for requests below kMinLargeAlloc.
LARGE_SEGMENT_BYTES = 20 * MIB
# kMinLargeAlloc: from here on a request has a segment of its own.
OWN_SEGMENT_BYTES = 10 * MIB
# kRoundLarge: such segments are rounded up to a multiple of it.
ROUND_LARGE_BYTES = 2 * MIB
# How often the last step is repeated at most: by then memory is nearly always cut as it was a step before.
MOST_REPEATS = 6
# Where the large pool's expandable segment starts: behind all that the small one can grow to, at a page's edge.
_LARGE_ADDRESS = 2**36 * LARGE_SEGMENT_BYTES


class AllocatorFullError(Exception):
    """A request that the device cannot satisfy even after all cached memory was given back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorPeaks:
    """The most memory that a replay held at once.

    Attributes:
        allocated_bytes: In blocks that belong to tensors, with what could not be split off.
        reserved_bytes: Taken from the driver.
        num_releases: How often cached memory had to be given back to satisfy a request.
    """

    allocated_bytes: int
    reserved_bytes: int
    num_releases: int


@dataclass(slots=True, eq=False)
class _Block:
    """A piece of a segment, in a chain with its neighbours."""

    address: int
    num_bytes: int
    pool: _Pool
    is_free: bool = True
    before: _Block | None = None
    after: _Block | None = None


@dataclass(slots=True, eq=False)
class _Pool:
    """Free blocks by size, then address; best fit is the first that is large enough.

    Attributes:
        is_small: Whether it is for small requests.
        least_rest: What must be left of a block, in bytes, for the rest to be split off.
        free: Bytes, address and block; no two have the same address, so blocks are never compared.
        tail: The last block of an expandable segment.
    """

    is_small: bool
    least_rest: int
    free: list[tuple[int, int, _Block]] = field(default_factory=list)
    tail: _Block | None = None

    @property
    def page_bytes(self) -> int:
        """What an expandable segment grows and shrinks by."""
        return SMALL_SEGMENT_BYTES if self.is_small else LARGE_SEGMENT_BYTES

    def add(self, block: _Block) -> None:
        insort(self.free, (block.num_bytes, block.address, block))

    def remove(self, block: _Block) -> None:
        removed = self.free.pop(bisect_left(self.free, (block.num_bytes, block.address, block)))
        assert removed[2] is block


class CachingAllocator:
    """Answers requests as CUDA's allocator would.

    Args:
        capacity_bytes: What the driver can give in all; None for no end.
        expandable: Whether `expandable_segments:True` is set.
    """

    def __init__(self, *, capacity_bytes: int | None = None, expandable: bool = False) -> None:
        self._capacity_bytes = capacity_bytes
        self._expandable = expandable
        self._small = _Pool(is_small=True, least_rest=ROUND_BYTES)
        self._large = _Pool(is_small=False, least_rest=ROUND_BYTES if expandable else SMALL_BYTES + ROUND_BYTES)
        self._next_address = 0
        self.allocated_bytes = self.reserved_bytes = 0
        self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self.num_releases = 0

    def allocate(self, num_bytes: int) -> _Block:
        """Return a block of at least `num_bytes`."""
        size = -(-num_bytes // ROUND_BYTES) * ROUND_BYTES
        pool = self._small if size <= SMALL_BYTES else self._large
        free = pool.free
        index = bisect_left(free, (size,))
        if index < len(free):
            block = free.pop(index)[2]
        elif self._expandable:
            block = self._grow(pool, size)
        else:
            block = self._new_segment(pool, size)
        block.is_free = False
        if block.num_bytes - size >= pool.least_rest:
            self._split(block, size)
        self.allocated_bytes += block.num_bytes
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        return block

    def free_sizes(self) -> tuple[list[int], ...]:
        """Return how large the free blocks are: where a step leaves them as it found them, the next will too."""
        return tuple([num_bytes for num_bytes, _, _ in pool.free] for pool in (self._small, self._large))

    def drop_cache(self) -> None:
        """Give back to the driver every wholly free segment, or of an expandable one every wholly free page."""
        for pool in (self._small, self._large):
            for _, _, block in list(pool.free):
                if self._expandable:
                    self._unmap(block)
                elif block.before is None and block.after is None:
                    pool.remove(block)
                    self.reserved_bytes -= block.num_bytes

    def free(self, block: _Block) -> None:
        """Give a block back to its pool and merge it with free neighbours."""
        self.allocated_bytes -= block.num_bytes
        block.is_free = True
        pool = block.pool
        before, after = block.before, block.after
        if after is not None and after.is_free:
            pool.remove(after)
            self._merge(block, after)
        if before is not None and before.is_free:
            pool.remove(before)
            self._merge(before, block)
            block = before
        pool.add(block)

    def _split(self, block: _Block, size: int) -> _Block:
        pool, after = block.pool, block.after
        rest = _Block(block.address + size, block.num_bytes - size, pool, before=block, after=after)
        if after is not None:
            after.before = rest
        elif pool.tail is block:
            pool.tail = rest
        block.after, block.num_bytes = rest, size
        pool.add(rest)
        return rest

    def _merge(self, block: _Block, after: _Block) -> None:
        block.num_bytes += after.num_bytes
        block.after = after.after
        if after.after is not None:
            after.after.before = block
        elif block.pool.tail is after:
            block.pool.tail = block

    def _new_segment(self, pool: _Pool, size: int) -> _Block:
        if pool.is_small:
            segment_bytes = SMALL_SEGMENT_BYTES
        elif size < OWN_SEGMENT_BYTES:
            segment_bytes = LARGE_SEGMENT_BYTES
        else:
            segment_bytes = -(-size // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES
        self._reserve(segment_bytes)
        block = _Block(self._next_address, segment_bytes, pool)
        self._next_address += segment_bytes
        return block

    def _grow(self, pool: _Pool, size: int) -> _Block:
        """Map as many more pages as it takes at the end of the pool's one segment."""
        if not self._has_room(self._missing_bytes(pool, size)):
            self._release()  # which may take the free tail away
        more_bytes = self._missing_bytes(pool, size)
        self._reserve(more_bytes)
        tail = pool.tail
        if tail is not None and tail.is_free:
            pool.remove(tail)
            tail.num_bytes += more_bytes
            block = tail
        else:
            address = tail.address + tail.num_bytes if tail is not None else (0 if pool.is_small else _LARGE_ADDRESS)
            block = _Block(address, more_bytes, pool, before=tail)
            if tail is not None:
                tail.after = block
        pool.tail = block
        return block

    @staticmethod
    def _missing_bytes(pool: _Pool, size: int) -> int:
        free_bytes = pool.tail.num_bytes if pool.tail is not None and pool.tail.is_free else 0
        return -(-(size - free_bytes) // pool.page_bytes) * pool.page_bytes

    def _has_room(self, num_bytes: int) -> bool:
        return self._capacity_bytes is None or self.reserved_bytes + num_bytes <= self._capacity_bytes

    def _reserve(self, num_bytes: int) -> None:
        if not self._has_room(num_bytes):
            self._release()
            if not self._has_room(num_bytes):
                raise AllocatorFullError(num_bytes)
        self.reserved_bytes += num_bytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _release(self) -> None:
        self.num_releases += 1
        self.drop_cache()

    def _unmap(self, block: _Block) -> None:
        """Turn the whole pages of a free block into a hole, which no request is answered from any more."""
        pool = block.pool
        start = -(-block.address // pool.page_bytes) * pool.page_bytes
        end = (block.address + block.num_bytes) // pool.page_bytes * pool.page_bytes
        if start >= end:
            return
        pool.remove(block)
        if block.address < start:
            before, block = block, self._split(block, start - block.address)
            pool.remove(block)
            pool.add(before)
        block.is_free = False
        if block.num_bytes > end - start:
            self._split(block, end - start)
        self.reserved_bytes -= end - start


def replay(
    events: Sequence[tuple[int, int]],
    *,
    workspaces: Mapping[int, int] = MappingProxyType({}),
    repetition: Repetition | None = None,
    cache_drops: frozenset[int] = frozenset(),
    capacity_bytes: int | None = None,
    expandable: bool = False,
) -> AllocatorPeaks:
    """Replay births (number, bytes) and deaths (number, 0) of storages; raise `AllocatorFullError` where it ends.

    Args:
        events: In order.
        workspaces: Bytes that libraries take, and keep, where a number first dies that stands for that moment.
        repetition: How to go on after them, until memory is cut as it was a step before. None for not at all.
        cache_drops: Numbers whose death is a moment at which the program gives all cached memory back.
        capacity_bytes: What the driver can give in all; None for no end.
        expandable: Whether `expandable_segments:True` is set.

    >>> replay([(0, 3 * MIB), (1, 600), (0, 0), (2, 2 * MIB)])
    AllocatorPeaks(allocated_bytes=3146752, reserved_bytes=23068672, num_releases=0)
    """
    allocator = CachingAllocator(capacity_bytes=capacity_bytes, expandable=expandable)
    held: dict[int, _Block] = {}
    to_take = dict(workspaces)
    _run(events, allocator, held, cache_drops, to_take)
    if repetition is not None:
        step = events[repetition.start :]
        for _ in range(MOST_REPEATS):
            before = allocator.free_sizes()
            for older, kept in repetition.successors.items():
                if kept in held:  # what was given no memory is not there
                    held[older] = held.pop(kept)
            _run(step, allocator, held, cache_drops, to_take)
            if allocator.free_sizes() == before:
                break
    return AllocatorPeaks(
        allocated_bytes=allocator.peak_allocated_bytes,
        reserved_bytes=allocator.peak_reserved_bytes,
        num_releases=allocator.num_releases,
    )


def _run(
    events: Sequence[tuple[int, int]],
    allocator: CachingAllocator,
    held: dict[int, _Block],
    cache_drops: frozenset[int],
    workspaces: dict[int, int],
) -> None:
    allocate, free = allocator.allocate, allocator.free
    for number, num_bytes in events:
        if num_bytes:
            held[number] = allocate(num_bytes)
        elif number in held:
            free(held.pop(number))
        elif number in cache_drops:
            allocator.drop_cache()
        elif number in workspaces:
            allocate(workspaces.pop(number))
