import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import InputError
from brim.units import format_bytes, parse_bytes, parse_seconds


@given(st.integers(2**20, 2**62))
def test_a_whole_number_of_bytes_reads_back_as_itself(num_bytes):
    assert parse_bytes(num_bytes) == pytest.approx(num_bytes, rel=1e-15)


@given(st.integers(2**10, 2**50))
def test_a_written_size_reads_back_within_half_a_percent(num_bytes):
    assert parse_bytes(format_bytes(num_bytes)) == pytest.approx(num_bytes, rel=0.006)


@pytest.mark.parametrize("text", ["12parsecs", "", "GiB", "-1GiB", "1e999GiB", "nan", "0", True, None])
def test_nonsense_is_refused_with_an_example(text):
    with pytest.raises(InputError, match="Use for example 8GiB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["23.7", "24 ", "80000", 24, 23.7])
def test_a_small_number_without_a_unit_asks_for_one(text):
    with pytest.raises(InputError, match=r"has no unit\. Use for example 8GiB"):
        parse_bytes(text)


def test_a_unit_makes_any_number_a_size():
    assert parse_bytes("23B") == 23


@pytest.mark.parametrize("text", ["soon", "0", "-3s", "5parsecs"])
def test_a_time_must_be_a_time(text):
    with pytest.raises(InputError, match="Use for example 90"):
        parse_seconds(text)
