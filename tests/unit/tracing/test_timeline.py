from hypothesis import given
from hypothesis import strategies as st

from brim.tracing.record import Phase, Record, Storage
from brim.tracing.timeline import timeline


def storage(num_bytes, phase=Phase.FORWARD, module="", kind=None):
    return Storage(num_bytes=num_bytes, phase=phase, module=module, kind=kind)


def totals(points):
    return [sum(point.bytes.values()) for point in points]


def test_the_last_step_begins_with_what_was_held_before_it():
    record = Record(
        storages=(
            storage(100, Phase.BUILD, kind="parameters"),
            storage(7, module="first step"),
            storage(5, module="second step"),
            storage(3, Phase.BACKWARD, module="second step"),
        ),
        events=((0, 100), (1, 7), (1, 0), (2, 5), (3, 3), (2, 0), (3, 0)),
        step_starts=(1, 2),
    )
    points = timeline(record)
    assert totals(points) == [105, 108, 103, 100]
    assert [point.phase for point in points] == ["forward", "backward", "backward", "backward"]
    assert points[1].bytes["activations"] == 5
    assert {point.module for point in points} == {"second step"}


@given(sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=300), num_points=st.integers(1, 40))
def test_thinning_keeps_the_peak_and_the_order(sizes, num_points):
    births = [(number, size) for number, size in enumerate(sizes)]
    deaths = [(number, 0) for number in range(0, len(sizes), 2)]
    record = Record(storages=tuple(storage(size) for size in sizes), events=(*births, *deaths), step_starts=(0,))
    points = timeline(record, num_points)
    assert max(totals(points)) == record.peak()[0]
    assert len(points) <= num_points
    assert [point.event for point in points] == sorted({point.event for point in points})
