import collections
import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BatchEncoding

from brim.errors import InputError
from brim.training.splitting import count_samples, merge, split

Pair = collections.namedtuple("Pair", "x y")


@dataclasses.dataclass
class Sample:
    x: torch.Tensor
    length: int


def make(kind: str, size: int):
    x, y = torch.arange(2 * size).reshape(size, 2), torch.arange(size)
    return {
        "tensor": x,
        "tuple": (x, y),
        "named tuple": Pair(x, y),
        "mapping": {"x": x, "nested": {"y": y}, "name": "all", "scalar": torch.tensor(3)},
        "encoding": BatchEncoding({"input_ids": x, "labels": y}),
        "dataclass": Sample(x=x, length=7),
        "texts": (x, [f"text {k}" for k in range(size)]),
    }[kind]


@given(
    st.sampled_from(["tensor", "tuple", "named tuple", "mapping", "encoding", "dataclass", "texts"]),
    st.integers(1, 40),
    st.integers(1, 50),
)
def test_a_split_is_exact_and_even_and_can_be_undone(kind, size, num_parts):
    batch = make(kind, size)
    parts = split(batch, num_parts)
    sizes = [count_samples(part) for part in parts]
    assert sum(sizes) == size
    assert len(parts) == min(size, num_parts)
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    assert {type(part) for part in parts} == {type(batch)}
    assert str(merge(parts)) == str(batch)


def test_100_samples_in_3_parts_are_34_33_33():
    assert [len(part) for part in split(torch.zeros(100), 3)] == [34, 33, 33]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((torch.zeros(3), torch.zeros(4)), r"first dimensions \[3, 4\]"),
        ({"size": 3}, "no tensor with a first dimension"),
        (torch.zeros(0, 2), "holds no samples"),
    ],
)
def test_what_cannot_be_cut_is_refused(batch, message):
    with pytest.raises(InputError, match=message):
        split(batch, 2)


def test_texts_of_different_lengths_do_not_make_one_batch():
    with pytest.raises(InputError, match=r"shapes \(5,\), \(7,\)"):
        merge([torch.zeros(2, 5), torch.zeros(2, 7)])
