from array import array
from random import Random

import numpy
import pytest
import torch

from brim.errors import InputError, LengthError
from brim.planning.lengths import as_lengths, check_longest, padding_efficiency


@pytest.mark.parametrize(
    "lengths", [[3, 5], (3, 5), iter([3, 5]), array("i", [3, 5]), numpy.array([3, 5]), torch.tensor([3, 5])]
)
def test_lengths_come_as_anything_that_holds_whole_numbers(lengths):
    assert as_lengths(lengths) == array("q", [3, 5])


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([], "There are no lengths"),
        ([4, 0], "length at index 1 is 0"),
        ([4, 2, -7], "length at index 2 is -7"),
        ([4, 1.5], r"length at index 1 is 1\.5, not a whole number"),
        ([4, None], "length at index 1 is None"),
        ([2**63], "length at index 0 is"),
    ],
)
def test_bad_lengths_are_named_by_their_index(lengths, message):
    with pytest.raises(InputError, match=message):
        as_lengths(lengths)


def test_a_length_above_the_limit_is_named_by_its_index():
    with pytest.raises(LengthError, match=r"index 1 has length 9, above the 8 that fit\. Shorten it"):
        check_longest(as_lengths([8, 9, 3]), 8, remedy="give up")


@pytest.mark.parametrize("batch_size", [2, 8, 64])
def test_random_batches_of_uniform_lengths_have_the_known_efficiency(batch_size):
    random = Random(0)
    lengths = [random.randint(1, 100_000) for _ in range(64_000)]
    batches = [range(start, start + batch_size) for start in range(0, len(lengths), batch_size)]
    expected = (batch_size + 1) / (2 * batch_size)
    assert padding_efficiency(lengths, batches) == pytest.approx(expected, rel=0.01)


def test_equal_lengths_have_no_padding():
    assert padding_efficiency([7, 7, 7], [[0, 1], [2]]) == 1
