import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import InputError, LengthError
from brim.planning.packing import cu_seqlens, pack


def first_fit_decreasing(lengths, capacity):
    """The rule itself, in quadratic time."""
    rows = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        for row in rows:
            if sum(lengths[i] for i in row) + lengths[index] <= capacity:
                row.append(index)
                break
        else:
            rows.append([index])
    return rows


def test_the_known_answer_is_two_rows():
    assert len(pack([4, 8, 1, 4, 2, 1], 10)) == 2


@given(st.data())
def test_every_sample_goes_into_the_first_row_with_room_for_it(data):
    capacity = data.draw(st.integers(1, 60))
    lengths = data.draw(st.lists(st.integers(1, capacity), min_size=1, max_size=80))
    assert pack(lengths, capacity) == first_fit_decreasing(lengths, capacity)


def test_equal_lengths_that_divide_the_capacity_leave_no_room():
    assert pack([5] * 8, 10) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_sample_longer_than_a_row_is_named():
    with pytest.raises(LengthError, match="index 2 has length 11, above the 10 that fit") as caught:
        pack([4, 8, 11, 3, 12], 10)
    assert caught.value.indices == (2, 4)
    assert caught.value.longest == 10


@pytest.mark.parametrize("capacity", [0, -4, 2.5, True])
def test_a_capacity_that_is_no_count_is_refused(capacity):
    with pytest.raises(InputError, match="capacity is"):
        pack([1], capacity)


def test_sequences_begin_where_the_ones_before_them_end():
    assert cu_seqlens([3, 5, 2]) == [0, 3, 8, 10]
    assert cu_seqlens([]) == [0]
