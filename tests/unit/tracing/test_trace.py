import gc
import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

import brim
from brim.cases import Case
from brim.devices.catalog import Gpu
from brim.devices.cpu import CpuMeter, data_bytes
from brim.errors import TraceError
from brim.probing.trial import run_trial
from brim.tracing import Prediction, predict_curve, trace, trace_curve
from brim.tracing.backing import Backing
from brim.tracing.curves import _trace_in_forks
from brim.tracing.fake import fake_tensors
from brim.tracing.ledger import Ledger
from brim.tracing.recorder import Recorder
from brim.tracing.runtime import Runtime
from brim.tracing.sizes import TracedSizes
from brim.workload import prepare

MIB = 2**20
ROOT = Path(__file__).parents[3]
# More than any of the traces here takes.
ROOM_BYTES = 16 * 2**30


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


class ConvNet(Mlp):
    def build(self):
        layers = [nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)]
        self.model = nn.Sequential(*layers).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), momentum=0.9)

    def batch(self, size):
        return torch.randn(size, 16, 4, 4, device=self.device)

    def step(self, batch):
        F.mse_loss(self.model(batch), batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class DeepConvNet(ConvNet):
    """Every tensor takes 1 KiB a sample, so from 32,768 samples on it is above glibc's threshold of 32 MiB."""

    def build(self):
        layers = [module for _ in range(32) for module in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())]
        self.model = nn.Sequential(*layers).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), momentum=0.9)


class Asks(Mlp):
    def step(self, batch):
        return 1 if batch.sum().item() > 0 else 0


class Twice(Mlp):
    def step(self, batch):
        super().step(torch.cat([batch, batch]))


class TwiceOrOnce(Twice):
    def step(self, batch):
        if batch.sum() > 0:
            return super().step(batch)
        return Mlp.step(self, batch)


class Counts(Mlp):
    def step(self, batch):
        torch.zeros(int(batch.sum()))


class Idle(brim.Workload):
    def build(self):
        pass

    def batch(self, size):
        return size

    def step(self, batch):
        pass


class Own(brim.Workload):
    """Two gradients of one tensor, held by autograd alone."""

    def build(self):
        pass

    def batch(self, size):
        return torch.zeros(size, 256, device=self.device, requires_grad=True)

    def step(self, batch):
        self.branch(batch * 2).backward()
        batch.grad = None

    def branch(self, hidden):
        return (hidden * 2).sum() + (hidden * 3).sum()


class Views(Own):
    def branch(self, hidden):
        return (hidden.t() * 2).sum() + (hidden.t() * 3).sum()


class InPython(Own):
    def branch(self, hidden):
        return Doubled.apply(hidden).sum()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values * 5

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 + gradient * 3


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


class SumsUp(Mlp):
    """The gradient of a sum is one number that is repeated, which matrix products copy first."""

    def step(self, batch):
        self.model(batch).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def test_operands_that_no_blas_takes_are_copied():
    assert trace(SumsUp, Case(), 20_000).peak_bytes == pytest.approx(real_peak(SumsUp, 20_000), rel=0.005)


@pytest.mark.parametrize("workload_class", [Own, Views, InPython])
def test_gradients_are_added_in_place_where_autograd_does_it(workload_class):
    assert trace(workload_class, Case(), 1000).peak_bytes == pytest.approx(real_peak(workload_class, 1000), rel=0.005)


def test_a_step_that_asks_for_values_cannot_be_traced():
    with pytest.raises(TraceError, match="step does not run on fake tensors"):
        trace(Asks, Case(), 2)


def test_a_compiled_model_is_traced_as_it_was_written():
    class Compiled(Mlp):
        def build(self):
            super().build()
            self.model = torch.compile(self.model)

    assert trace(Compiled, Case(), 64).peak_bytes == trace(Mlp, Case(), 64).peak_bytes


def test_a_step_without_operations_is_no_trace():
    with pytest.raises(TraceError, match="no torch operation"):
        trace(Idle, Case(), 2)


def run_fresh(code):
    """Run Python in a new process, as probes and traces do: this one has threads, which do not survive a fork."""
    code = f"from tests.unit.tracing.test_trace import *\nimport json\nprint(json.dumps({code}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def curve_of(workload_class, *, target_bytes, cap=2**20):
    """The curve as a job under a limit of `target_bytes` above its baseline needs it."""
    try:
        curve = trace_curve(
            workload_class, Case(), baseline_bytes=MIB, limit_bytes=MIB + target_bytes, cap=cap, steps=3, backed=True
        )
    except TraceError as error:
        return str(error)
    goal = curve.goal(MIB + target_bytes, cap)
    return {"live": list(curve.live.values()), "slope": curve.slope, "goal": goal, "gap_from": curve.gap_from}


def growth_bytes(workload_class, size):
    """By how much a process grows in a backed trace."""
    return _trace_in_forks(workload_class, Case(), [size], steps=2, room_bytes=ROOM_BYTES)[size]["grown_bytes"]


def real_growth_bytes(workload_class, size):
    """By how much a process grows over a build, a batch and two steps."""
    meter = CpuMeter()
    outcome = run_trial(workload_class, Case(), size, steps=2, meter=meter, limit_bytes=2**40)
    return outcome["peak_bytes"] - meter.baseline_bytes


@pytest.mark.usefixtures("heap")
def test_a_larger_size_is_the_goal_where_the_allocator_serves_it_with_less():
    curve = run_fresh("curve_of(DeepConvNet, target_bytes=1370 * MIB)")
    assert curve["gap_from"] < 32 * 1024 < curve["goal"]
    assert curve["slope"] < 1.2


def test_a_curve_brackets_its_target():
    curve = run_fresh("curve_of(Mlp, target_bytes=500 * MIB)")
    assert min(curve["live"]) <= 500 * MIB <= 1.5 * max(curve["live"])
    assert 1 <= curve["slope"] <= 2


def test_on_cuda_the_curve_meets_the_limit_where_the_prediction_does():
    gpu = Gpu(name="card", memory_bytes=600 * MIB, capability=(8, 6))
    prediction = Prediction(
        TracedSizes(Mlp, Case(), capability=gpu.capability), gpu=gpu, runtime=Runtime(), context=100 * MIB
    )
    curve = predict_curve(
        Mlp,
        Case(),
        capability=gpu.capability,
        baseline_bytes=prediction.context_bytes,
        limit_bytes=gpu.memory_bytes,
        cap=2**20,
    )
    assert curve.goal(gpu.memory_bytes, 2**20) == prediction.largest > 1
    either = predict_curve(TwiceOrOnce, Case(), capability=(8, 6), baseline_bytes=MIB, limit_bytes=600 * MIB, cap=2**20)
    twice = predict_curve(Twice, Case(), capability=(8, 6), baseline_bytes=MIB, limit_bytes=600 * MIB, cap=2**20)
    assert either.live == twice.live


def test_what_fake_tensors_cannot_do_is_told_from_the_process_that_traced():
    assert "step does not run on fake tensors" in run_fresh("curve_of(Counts, target_bytes=50 * MIB)")


def test_a_curve_is_that_of_the_way_that_takes_most():
    # At the sizes traced first: which come next depends on what the heap wastes, which differs from run to run.
    code = "[curve_of(each, target_bytes=500 * MIB)['live'][:2] for each in (Mlp, Twice, TwiceOrOnce)]"
    once, twice, either = run_fresh(code)
    assert once != either == twice


def test_a_backed_trace_grows_as_a_real_run_does():
    # Tensors above 32 MiB, which glibc never takes from its heap: what the heap holds already has no say then.
    size = 2**16
    traced, real = run_fresh(f"[growth_bytes(ConvNet, {size}), real_growth_bytes(ConvNet, {size})]")
    assert traced == pytest.approx(real, rel=0.03)


@pytest.mark.parametrize(
    "loss",
    [F.mse_loss, F.smooth_l1_loss, F.l1_loss, F.huber_loss, F.binary_cross_entropy, F.binary_cross_entropy_with_logits],
)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_loss_keeps_the_storage_that_the_real_one_keeps(loss, reduction):
    def measure():
        ones = torch.ones(1000)
        before_bytes = ledger.live_bytes
        kept = loss(ones, ones, reduction=reduction)
        return kept.untyped_storage().nbytes(), ledger.live_bytes - before_bytes

    ledger = Ledger()
    with Recorder(ledger):
        real_bytes, _ = measure()
    ledger = Ledger()
    with fake_tensors(), Recorder(ledger):
        _, traced_bytes = measure()
    assert traced_bytes == real_bytes


def test_backing_reuses_what_was_given_back_and_costs_no_memory():
    gc.collect()  # what earlier tests left must not be given back in the middle of this one
    backing = Backing()
    before_bytes, resident_bytes = data_bytes(), psutil.Process().memory_info().rss
    for _ in range(50):
        backing.give_back(backing.take(64 * MIB))
    held = backing.take(512 * MIB)
    assert data_bytes() - before_bytes == pytest.approx(512 * MIB, rel=0.05)
    assert psutil.Process().memory_info().rss - resident_bytes < 16 * MIB
    backing.give_back(held)
    assert backing.is_complete


def test_backing_that_asks_for_the_impossible_says_so():
    backing = Backing()
    assert backing.take(2**62) is None
    assert not backing.is_complete
