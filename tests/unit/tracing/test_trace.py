import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import brim
from brim.cases import Case
from brim.devices.cpu import data_bytes
from brim.errors import TraceError
from brim.tracing import trace, trace_curve
from brim.tracing.replay import replayed_bytes
from brim.workload import prepare


class Mlp(brim.Workload):
    def build(self):
        self.model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def batch(self, size):
        return torch.randn(size, 256, device=self.device)

    def step(self, batch):
        self.model(batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Asks(Mlp):
    def step(self, batch):
        return batch.sum().item()


class Idle(brim.Workload):
    def build(self):
        pass

    def batch(self, size):
        return size

    def step(self, batch):
        pass


def real_peak(workload_class, size):
    """The CPU allocator's own count over a build, a batch and two steps."""
    workload = prepare(workload_class, Case(), "cpu")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        workload.build()
        batch = workload.batch(size)
        for _ in range(2):
            workload.step(batch)
    events = sorted(
        (event.start_ns(), event.nbytes())
        for event in recorded.profiler.kineto_results.events()
        if event.name() == "[memory]"
    )
    live = peak = 0
    for _, num_bytes in events:
        live += num_bytes
        peak = max(peak, live)
    return peak


@pytest.mark.parametrize("size", [1, 64, 4096])
def test_the_traced_peak_is_the_allocators_real_one(size):
    assert trace(Mlp, Case(), size).peak_bytes == pytest.approx(real_peak(Mlp, size), rel=0.005)


def test_a_step_that_asks_for_values_cannot_be_traced():
    with pytest.raises(TraceError, match="step does not run on fake tensors"):
        trace(Asks, Case(), 2)


def test_a_step_without_operations_is_no_trace():
    with pytest.raises(TraceError, match="no torch operation"):
        trace(Idle, Case(), 2)


def test_a_curve_brackets_its_target():
    target = 50 * 2**20
    points = trace_curve(Mlp, Case(), target_bytes=target, cap=2**20)
    assert min(points.values()) <= target <= 1.3 * max(points.values())


def test_a_replay_grows_by_what_is_live_and_a_little_more():
    # Tensors above 32 MiB, which glibc never takes from its heap: what the heap holds already has no say then.
    traced = trace(Mlp, Case(), 2**17)
    assert replayed_bytes(traced.events) == pytest.approx(traced.peak_bytes, rel=0.05)


def test_a_replay_reuses_what_was_freed():
    mib = 2**20
    events = [event for number in range(0, 100, 2) for event in ((number, 64 * mib), (number, 0))]
    assert replayed_bytes(events) == pytest.approx(64 * mib, rel=0.05)


def test_a_replay_costs_this_process_nothing():
    mib = 2**20
    before_bytes = data_bytes()
    assert replayed_bytes([(0, 512 * mib)]) == pytest.approx(512 * mib, rel=0.05)
    assert data_bytes() - before_bytes < 16 * mib


def test_a_replay_that_asks_for_the_impossible_has_no_answer():
    assert replayed_bytes([(0, 2**62)]) is None
