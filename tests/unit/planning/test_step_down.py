"""The way down has an end, and every step of it is smaller or cheaper."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import InputError
from brim.planning.step_down import StepDown

sizes_lists = st.lists(st.integers(1, 10**6), min_size=1, unique=True).map(lambda sizes: sorted(sizes, reverse=True))


@given(st.none() | sizes_lists, st.booleans(), st.integers(1, 10**6))
def test_the_way_down_never_loops_and_ends_at_its_smallest_size(sizes, checkpointing, failed):
    way = StepDown(sizes=None if sizes is None else tuple(sizes), checkpointing=checkpointing)
    seen = []
    while (following := way.after(failed)) is not None:
        state = (following.is_checkpointed, -following.limit)
        assert following.limit <= failed
        assert not seen or state > seen[-1]
        seen.append(state)
        way, failed = following, following.limit
    assert way.is_checkpointed == checkpointing
    assert failed == 1 if sizes is None else not any(size < failed for size in sizes)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 64))
def test_no_part_of_a_batch_is_above_the_limit(num_samples, limit, accumulation):
    num_parts = StepDown(limit=limit).num_parts(num_samples, at_least=accumulation)
    assert num_parts >= accumulation
    assert -(-num_samples // num_parts) <= limit


def test_without_a_list_checkpointing_comes_after_three_halvings():
    way, seen = StepDown(checkpointing=True), []
    while (following := way.after(way.limit or 64)) is not None:
        way = following
        seen.append((way.limit, way.is_checkpointed))
    assert seen == [(32, False), (16, False), (8, False), (8, True), (4, True), (2, True), (1, True)]


@pytest.mark.parametrize("sizes", [(), (4, 8), (8, 8), (8, 0), (8, 2.5)])
def test_a_list_that_does_not_fall_is_refused(sizes):
    with pytest.raises(InputError, match="step_down"):
        StepDown(sizes=sizes)
