"""Buckets of lengths, and the order they are tried in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import InputError
from brim.planning.buckets import bucket_edges, mix_order, read_lengths

LENGTHS = st.lists(st.integers(1, 10**6), min_size=1, max_size=50)


@given(LENGTHS)
def test_every_length_has_a_bucket_and_the_last_is_the_longest(lengths):
    edges = bucket_edges(lengths)
    assert edges == sorted(set(edges))
    assert edges[-1] == max(lengths)
    assert len(edges) <= 6


@given(LENGTHS)
def test_every_bucket_holds_a_length(lengths):
    edges = bucket_edges(lengths)
    for shorter, edge in zip([0, *edges], edges, strict=False):
        assert any(shorter < length <= edge for length in lengths)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=6, unique=True))
def test_a_mix_begins_with_the_extremes_and_holds_every_bucket_twice_more(edges):
    order = mix_order(edges)
    assert order[:2] == [max(edges), min(edges)]
    assert sorted(order[2:]) == sorted(edges * 2)
    assert order == mix_order(edges), "equal on all ranks"


@pytest.mark.parametrize("text", ["3\n5\n2\n", "[3, 5, 2]", "3 5 2"])
def test_lengths_are_read_from_lines_and_from_json(tmp_path, text):
    path = tmp_path / "lengths"
    path.write_text(text)
    assert read_lengths(path) == [3, 5, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [("3\nlong\n", "not whole numbers"), ("", "There are no lengths"), ("[1.5]", "not a whole number"), ("0", "is 0")],
)
def test_a_file_without_lengths_is_refused(tmp_path, text, message):
    path = tmp_path / "lengths"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_lengths(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_lengths(tmp_path / "gone")
