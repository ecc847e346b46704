import pytest
import torch
from torch import nn

import brim
from brim.cases import Case
from brim.tracing import trace
from brim.tracing.sizes import TracedSizes

AMPERE = (8, 0)


class Images(brim.Workload):
    """Two layers that cuDNN sees as one convolution, after one of another shape."""

    def build(self):
        layers = [nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)]
        self.model = nn.Sequential(*layers).to(self.device)

    def batch(self, size):
        return torch.randn(size, 3, 16, 16, device=self.device)

    def step(self, batch):
        self.model(batch).sum().backward()
        self.model.zero_grad()


class Depthwise(Images):
    layout = torch.contiguous_format

    def build(self):
        self.model = nn.Conv2d(3, 6, 3, groups=3).to(self.device, memory_format=self.layout)

    def batch(self, size):
        return super().batch(size).contiguous(memory_format=self.layout)


class DepthwiseChannelsLast(Depthwise):
    layout = torch.channels_last


class Emptying(Images):
    def step(self, batch):
        super().step(batch)
        torch.cuda.empty_cache()


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)


def num_drops(workload, steps=2):
    return len(trace(workload, Case(), 4, steps=steps, capability=AMPERE).record.cache_drops)


def test_no_cache_is_dropped_without_a_reason():
    assert num_drops(Images) == 0


@pytest.mark.usefixtures("benchmark")
def test_cudnn_tries_each_convolution_once_forward_and_once_backward():
    # The first layer needs no gradient of its images, which makes its backward pass another one all the same.
    assert num_drops(Images, steps=1) == 4
    assert num_drops(Images, steps=3) == 4


@pytest.mark.usefixtures("benchmark")
def test_torch_has_its_own_kernel_for_single_channels_unless_they_come_last():
    assert num_drops(Depthwise) == 0
    assert num_drops(DepthwiseChannelsLast) == 2


def test_emptying_the_cache_is_seen_in_every_step():
    assert num_drops(Emptying, steps=1) == 1
    assert num_drops(Emptying, steps=3) == 3


@pytest.mark.usefixtures("benchmark")
def test_sizes_on_the_line_drop_their_cache_where_traced_ones_do():
    sizes = TracedSizes(Images, Case(), capability=AMPERE)
    assert sizes.is_on_line(10)
    drops = sizes.cache_drops(10)
    at_drops = [event for event in sizes.events(10) if event[0] in drops]
    traced = trace(Images, Case(), 10, capability=AMPERE).record
    assert at_drops == [event for event in traced.events if event[0] in traced.cache_drops]
    assert sizes.record(10).cache_drops == traced.cache_drops


@pytest.mark.usefixtures("benchmark")
def test_a_drop_holds_nothing():
    with_drops = trace(Images, Case(), 4, capability=AMPERE)
    torch.backends.cudnn.benchmark = False
    without = trace(Images, Case(), 4, capability=AMPERE)
    assert with_drops.peak_bytes == without.peak_bytes
    assert with_drops.record.breakdown() == without.record.breakdown()
