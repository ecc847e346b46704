"""No batch is lost that was drawn when a loop failed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import brim
from brim.errors import InputError


@given(st.integers(0, 20), st.lists(st.integers(0, 20)))
def test_every_batch_is_done_once_however_often_the_loop_fails(num_batches, failures):
    batches, done, failures = brim.keep_batches(range(num_batches)), [], list(failures)

    def loop():
        for batch in batches:
            if batch in failures:
                failures.remove(batch)
                raise MemoryError
            done.append(batch)

    for _ in range(len(failures) + 1):
        try:
            loop()
        except MemoryError:
            continue
        break
    assert done == list(range(num_batches))
    assert batches.num_done == num_batches


def test_a_shuffled_loader_goes_on_with_its_own_order_and_then_begins_a_new_pass():
    generator = torch.Generator().manual_seed(0)
    batches = brim.keep_batches(DataLoader(torch.arange(20), batch_size=3, shuffle=True, generator=generator))
    seen = []
    for batch in batches:
        if len(seen) == 3:
            break
        seen.append(batch)
    seen += list(batches)
    assert sorted(torch.cat(seen).tolist()) == list(range(20))
    assert len(batches) == len(list(batches)) == 7


def test_starting_over_forgets_the_rest():
    batches = brim.keep_batches([1, 2, 3])
    for batch in batches:
        if batch == 2:
            break
    batches.start_over()
    assert list(batches) == [1, 2, 3]


@pytest.mark.parametrize("loader", [3, iter([1, 2])])
def test_what_cannot_be_looped_over_again_is_refused(loader):
    with pytest.raises(InputError, match="Give a loader that can be looped over again"):
        brim.keep_batches(loader)
