"""Slices by a number that a trace does not know."""

import pytest
import torch
from torch import nn

import brim
from brim.cases import Case
from brim.errors import TraceError
from brim.tracing import trace


class Whole(brim.Workload):
    """Trains on texts as long as they come."""

    def build(self):
        self.embed = nn.Embedding(100, 16).to(self.device)
        self.optimizer = torch.optim.SGD(self.embed.parameters(), lr=0.1)

    def batch(self, size):
        return torch.randint(1, 100, (size, 32), device=self.device)

    def trim(self, ids):
        return ids

    def step(self, ids):
        self.embed(self.trim(ids)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class ToTheLongest(Whole):
    def trim(self, ids):
        return ids[:, : int((ids > 3).sum(1).max())]


class FromAnItem(Whole):
    def trim(self, ids):
        first = (ids > 3).int().argmax().item()
        assert ids[0, first].dim() == 0
        return ids[..., first:]


class Writes(Whole):
    def trim(self, ids):
        ids[:, (ids > 3).sum(1).max().item() :] = 0
        return ids


@pytest.mark.parametrize("workload_class", [ToTheLongest, FromAnItem, Writes])
def test_a_slice_by_an_unknown_number_is_all_that_it_may_be(workload_class):
    whole = trace(Whole, Case(), 8)
    traced = trace(workload_class, Case(), 8)
    assert _largest(traced) == _largest(whole)
    assert traced.held_bytes == whole.held_bytes


def test_values_of_the_host_are_unknown_once_an_unknown_part_of_them_is_taken():
    class Takes(Whole):
        def step(self, ids):
            count = (ids > 3).sum().item()
            if torch.arange(8)[:count].sum() > 4:
                self.kept = ids * 2
            super().step(ids)

    with pytest.raises(TraceError, match=r"if torch\.arange.*asks for a tensor's value"):
        trace(Takes, Case(), 8)


def _largest(traced):
    return sorted(storage.num_bytes for storage in traced.record.storages)[-3:]
