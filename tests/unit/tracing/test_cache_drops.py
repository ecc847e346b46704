import torch
from torch import nn

import brim
from brim.cases import Case
from brim.tracing import trace
from brim.tracing.sizes import TracedSizes

AMPERE = (8, 0)


class Training(brim.Workload):
    def build(self):
        self.model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).to(self.device)

    def batch(self, size):
        return torch.randn(size, 64, device=self.device)

    def step(self, batch):
        self.model(batch).sum().backward()
        self.model.zero_grad()


class Emptying(Training):
    def step(self, batch):
        super().step(batch)
        torch.cuda.empty_cache()


def record(workload, microbatch=4, steps=2):
    return trace(workload, Case(), microbatch, steps=steps, capability=AMPERE).record


def test_emptying_the_cache_is_seen_in_every_step():
    assert not record(Training).cache_drops
    assert len(record(Emptying, steps=1).cache_drops) == 1
    assert len(record(Emptying, steps=3).cache_drops) == 3


def test_sizes_on_the_line_drop_their_cache_where_traced_ones_do():
    sizes = TracedSizes(Emptying, Case(), capability=AMPERE)
    assert sizes.is_on_line(10)
    traced = record(Emptying, microbatch=10)
    assert sizes.events(10) == traced.events
    assert sizes.cache_drops(10) == sizes.record(10).cache_drops == traced.cache_drops


def test_a_drop_holds_nothing():
    assert record(Emptying).peak()[0] == record(Training).peak()[0]
    assert record(Emptying).breakdown() == record(Training).breakdown()
