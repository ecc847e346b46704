import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.tracing.allocator import MIB, AllocatorFullError, CachingAllocator, replay
from brim.tracing.repetition import Repetition


@pytest.mark.parametrize(
    ("asked", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        # From 10 MiB on a segment of its own; the rest is too small to split off and counts as allocated.
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),
        (11 * MIB + 512, 12 * MIB, 12 * MIB),
    ],
)
def test_a_request_is_rounded_and_comes_from_its_pool(asked, allocated, reserved):
    peaks = replay([(0, asked)])
    assert (peaks.allocated_bytes, peaks.reserved_bytes) == (allocated, reserved)


def test_small_requests_share_a_segment():
    assert replay([(number, 1000) for number in range(2048)]).reserved_bytes == 2 * MIB
    assert replay([(number, 1000) for number in range(2049)]).reserved_bytes == 4 * MIB


def test_the_smallest_free_block_that_is_large_enough_is_taken():
    allocator = CachingAllocator()
    large, small = allocator.allocate(40 * MIB), allocator.allocate(30 * MIB)
    allocator.free(large)
    allocator.free(small)
    assert allocator.allocate(25 * MIB) is small


def test_free_neighbours_merge():
    allocator = CachingAllocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
    for block in blocks:
        allocator.free(block)
    allocator.allocate(20 * MIB)
    assert allocator.reserved_bytes == 20 * MIB


def test_what_is_cached_is_given_back_when_the_device_is_full():
    events = [(0, 60 * MIB), (0, 0), (1, 80 * MIB)]
    peaks = replay(events, capacity_bytes=100 * MIB)
    assert peaks.num_releases == 1
    assert peaks.reserved_bytes == 80 * MIB
    assert replay(events).reserved_bytes == 140 * MIB


def test_a_segment_with_one_live_block_cannot_be_given_back():
    events = [(0, 5 * MIB), (1, 5 * MIB), (0, 0), (2, 90 * MIB)]
    with pytest.raises(AllocatorFullError):
        replay(events, capacity_bytes=100 * MIB)


def test_expandable_segments_grow_instead_of_leaving_holes():
    events = [(0, 30 * MIB), (0, 0), (1, 50 * MIB), (1, 0), (2, 70 * MIB)]
    assert replay(events).reserved_bytes == 150 * MIB
    assert replay(events, expandable=True).reserved_bytes == 80 * MIB


def test_expandable_segments_give_their_free_pages_back():
    events = [(0, 40 * MIB), (1, 20 * MIB), (0, 0), (2, 60 * MIB)]
    with pytest.raises(AllocatorFullError):
        replay([*events[:2], events[3]], capacity_bytes=100 * MIB, expandable=True)
    peaks = replay(events, capacity_bytes=100 * MIB, expandable=True)
    assert peaks.num_releases == 1
    assert peaks.reserved_bytes == 80 * MIB


LIVES = st.lists(st.tuples(st.integers(1, 64 * MIB), st.integers(0, 20)), min_size=1, max_size=60)


@given(lives=LIVES, expandable=st.booleans())
def test_nothing_is_lost(lives, expandable):
    allocator = CachingAllocator(expandable=expandable)
    held, live_bytes, most_live = [], 0, 0
    for num_bytes, num_freed in lives:
        held.append((allocator.allocate(num_bytes), num_bytes))
        live_bytes += num_bytes
        most_live = max(most_live, live_bytes)
        assert allocator.allocated_bytes <= allocator.reserved_bytes
        assert allocator.allocated_bytes >= live_bytes
        for _ in range(min(num_freed, len(held) - 1)):
            block, size = held.pop(0)
            allocator.free(block)
            live_bytes -= size
    for block, _ in held:
        allocator.free(block)
    assert allocator.allocated_bytes == 0
    assert allocator.peak_allocated_bytes >= most_live
    blocks = sorted((block.address, block.num_bytes) for block, _ in held)
    assert blocks == sorted(set(blocks))


@given(lives=LIVES, capacity=st.integers(64 * MIB, 1024 * MIB), expandable=st.booleans())
def test_the_capacity_is_never_passed(lives, capacity, expandable):
    allocator = CachingAllocator(capacity_bytes=capacity, expandable=expandable)
    held = []
    for num_bytes, num_freed in lives:
        try:
            held.append(allocator.allocate(num_bytes))
        except AllocatorFullError:
            break
        for _ in range(min(num_freed, len(held))):
            allocator.free(held.pop(0))
    assert allocator.peak_reserved_bytes <= capacity
    for block in held:
        allocator.free(block)
    assert allocator.allocated_bytes == 0


def test_what_is_cached_is_given_back_where_the_program_says_so():
    events = [(0, 60 * MIB), (0, 0), (1, 0), (2, 80 * MIB)]
    assert replay(events).reserved_bytes == 140 * MIB
    peaks = replay(events, cache_drops=frozenset({1}))
    assert peaks.reserved_bytes == 80 * MIB
    assert peaks.num_releases == 0
    assert replay(events, cache_drops=frozenset({1}), expandable=True).reserved_bytes == 80 * MIB


class Watched(CachingAllocator):
    """Notes what is held, and refuses to free it twice."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.held = {}

    def allocate(self, num_bytes):
        block = super().allocate(num_bytes)
        assert id(block) not in self.held
        self.held[id(block)] = block
        return block

    def free(self, block):
        del self.held[id(block)]
        super().free(block)
        assert self.allocated_bytes == sum(block.num_bytes for block in self.held.values())


# Numbers may be born while they live and die while they do not: what is to be replayed is not always well formed.
EVENTS = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from([0, 0, 1, 700_000, 3 * MIB, 30 * MIB])), min_size=1, max_size=40
)


@given(
    events=EVENTS,
    start=st.integers(0, 40),
    successors=st.dictionaries(st.integers(0, 9), st.integers(0, 9)),
    cache_drops=st.frozensets(st.integers(0, 9), max_size=2),
    capacity_bytes=st.none() | st.integers(30 * MIB, 300 * MIB),
    expandable=st.booleans(),
)
def test_no_order_of_births_and_deaths_frees_anything_twice(
    events, start, successors, cache_drops, capacity_bytes, expandable
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("brim.tracing.allocator.CachingAllocator", Watched)
        try:
            peaks = replay(
                events,
                repetition=Repetition(start=start, successors=successors),
                cache_drops=cache_drops,
                capacity_bytes=capacity_bytes,
                expandable=expandable,
            )
        except AllocatorFullError:
            assert capacity_bytes is not None
        else:
            assert peaks.allocated_bytes <= peaks.reserved_bytes


@given(lives=LIVES, expandable=st.booleans(), more_bytes=st.integers(0, 64 * MIB))
def test_a_capacity_changes_nothing_where_all_that_is_reserved_fits(lives, expandable, more_bytes):
    deaths = [[(number, 0)] if num_freed % 2 else [] for number, (_, num_freed) in enumerate(lives)]
    events = [event for number, (size, _) in enumerate(lives) for event in ((number, size), *deaths[number // 2])]
    peaks = replay(events, expandable=expandable)
    assert replay(events, expandable=expandable, capacity_bytes=peaks.reserved_bytes + more_bytes) == peaks
