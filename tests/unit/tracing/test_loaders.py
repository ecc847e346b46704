"""Batches from data loaders, which draw seeds and orders, and whose workers would be other processes."""

import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import brim
from brim.cases import Case
from brim.errors import TraceError
from brim.tracing import trace
from brim.tracing.sizes import TracedSizes

NUM_SAMPLES, WIDTH = 10_000, 64


class Loads(brim.Workload):
    def build(self):
        self.model = nn.Linear(WIDTH, WIDTH).to(self.device)
        self.dataset = TensorDataset(torch.randn(NUM_SAMPLES, WIDTH), torch.zeros(NUM_SAMPLES))

    def loader(self, size):
        return DataLoader(self.dataset, batch_size=size)

    def batch(self, size):
        return next(iter(self.loader(size)))

    def step(self, batch):
        inputs, _ = batch
        self.model(inputs.to(self.device, non_blocking=True)).sum().backward()
        self.model.zero_grad()


def _loads_with(make):
    class LoadsSo(Loads):
        def loader(self, size):
            return make(self.dataset, size)

    return LoadsSo


def _sampled(make_sampler):
    return lambda dataset, size: DataLoader(dataset, size, sampler=make_sampler(dataset))


@pytest.mark.parametrize(
    "make",
    [
        lambda dataset, size: DataLoader(dataset, size, shuffle=True),
        lambda dataset, size: DataLoader(dataset, size, shuffle=True, pin_memory=True, num_workers=2),
        lambda dataset, size: DataLoader(dataset, size, num_workers=1, persistent_workers=True, timeout=5),
        lambda dataset, size: DataLoader(dataset, size, shuffle=True, generator=torch.Generator().manual_seed(0)),
        _sampled(lambda dataset: RandomSampler(dataset, replacement=True, num_samples=2 * NUM_SAMPLES)),
        _sampled(lambda dataset: SubsetRandomSampler(range(5_000))),
        _sampled(lambda dataset: WeightedRandomSampler(torch.ones(NUM_SAMPLES), NUM_SAMPLES)),
        _sampled(lambda dataset: DistributedSampler(dataset, num_replicas=2, rank=1)),
    ],
)
@pytest.mark.parametrize("capability", [None, (8, 6)])
def test_a_batch_of_a_loader_is_traced_like_any_other(make, capability):
    expected = trace(Loads, Case(), 16, capability=capability)
    traced = trace(_loads_with(make), Case(), 16, capability=capability)
    assert traced.peak_bytes == pytest.approx(expected.peak_bytes, rel=0.1 if capability is None else 0)
    if capability is not None:
        assert traced.record.breakdown()["inputs"] == 16 * WIDTH * 4


def test_more_samples_than_a_loader_has_are_refused_without_a_trace_of_so_many():
    sizes = TracedSizes(Loads, Case(), capability=(8, 0))
    assert sizes.confirm(64)
    with pytest.raises(TraceError, match=r"returns 10,000 samples where it is asked for 1,000,000.*--cap 10000"):
        sizes.confirm(1_000_000)


def test_loaders_are_as_they_were_after_a_trace():
    trace(Loads, Case(), 16, capability=(8, 6))
    assert sorted(RandomSampler(range(100))) == list(range(100))
    assert list(RandomSampler(range(100))) != list(range(100))
