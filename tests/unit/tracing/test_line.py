from hypothesis import given
from hypothesis import strategies as st

from brim.searching.bounds import LARGEST_MICROBATCH
from brim.tracing.line import line_through
from brim.tracing.record import Phase, Record, Storage

LOW, HIGH = 4, 6
# Few numbers, so that differences are often even.
SIZES = st.integers(0, 16).map(lambda number: 256 * number)


def record_of(sizes):
    storages = tuple(Storage(num_bytes=size, phase=Phase.FORWARD, module="") for size in sizes)
    births = [(number, size) for number, size in enumerate(sizes) if size]
    return Record(storages=storages, events=(*births, *((number, 0) for number, _ in births)))


@given(pairs=st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=6), microbatch=st.integers(1, LARGEST_MICROBATCH))
def test_every_birth_on_a_line_takes_memory(pairs, microbatch):
    at_low, at_high = (record_of(sizes) for sizes in zip(*pairs, strict=True))
    line = line_through(LOW, at_low, HIGH, at_high)
    if line is not None:
        assert line.at(HIGH) == at_high
        num_births = len(at_low.events) // 2
        assert all(num_bytes > 0 for _, num_bytes in line.events_at(microbatch)[:num_births])


def test_a_size_that_is_smaller_for_more_samples_lies_on_no_line():
    assert line_through(LOW, record_of([800, 400]), HIGH, record_of([1200, 200])) is None
