"""A real step beside the traces shows what kernels keep for themselves."""

import ctypes
import json
import os  # noqa: F401  used by what runs in new processes
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

import brim
from brim.cases import Case
from brim.devices.cpu import data_bytes
from brim.forks import Fork, in_forks  # noqa: F401  used by what runs in new processes
from brim.searching.curve import MemoryCurve
from brim.tracing import rehearsal, trace_curve
from brim.tracing.curves import TracedCurve
from brim.tracing.rehearsal import KERNEL_BYTES, KERNEL_DOUBT, Rehearsal, Scratch

MIB = 2**20
ROOT = Path(__file__).parents[3]
KEPT_BYTES = 60 * MIB


class Wide(brim.Workload):
    """A MiB a sample and hardly any arithmetic."""

    def build(self):
        self.model = nn.Threshold(0.0, 0.0)
        self.weight = nn.Parameter(torch.ones(64, 1024, device=self.device))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.1)

    def batch(self, size):
        return torch.ones(size, 64, 1024, device=self.device)

    def step(self, batch):
        self.model(batch * self.weight).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class KeepsScratch(Wide):
    """Keeps a buffer that no tensor shows, as libraries of matrix products do."""

    buffer = None

    def step(self, batch):
        if type(batch) is torch.Tensor and self.buffer is None:
            type(self).buffer = ctypes.create_string_buffer(KEPT_BYTES)
        super().step(batch)


class KeepsScratchOfFew(KeepsScratch):
    """Runs for real only as long as a rehearsal is small."""

    def step(self, batch):
        if type(batch) is torch.Tensor and len(batch) > 100:
            raise MemoryError
        super().step(batch)


class TakesMoreForMore(Wide):
    """Takes half a MiB a sample that no tensor shows while it runs, as transposed convolutions do."""

    def step(self, batch):
        buffer = ctypes.create_string_buffer(len(batch) * MIB // 2) if type(batch) is torch.Tensor else None
        super().step(batch)
        del buffer


class Imports(Wide):
    """Takes memory in `build` that is no tensor's, as modules do."""

    def build(self):
        self.modules = bytearray(KEPT_BYTES)
        super().build()


class Refuses(Wide):
    def step(self, batch):
        if type(batch) is torch.Tensor:
            raise ValueError("not for real")
        super().step(batch)


class Hangs(Wide):
    def step(self, batch):
        while type(batch) is torch.Tensor:
            pass
        super().step(batch)


def curve_of(workload_class):
    """A curve under a limit that a few hundred samples fill."""
    held_bytes = data_bytes()
    return trace_curve(
        workload_class,
        Case(),
        baseline_bytes=held_bytes,
        limit_bytes=held_bytes + 600 * MIB,
        cap=4096,
        steps=3,
        backed=True,
    )


def seen_of(*workload_classes):
    """What the curves of a few workloads say, by name."""
    curves = {each.__name__: curve_of(each) for each in workload_classes}
    return {
        name: {**asdict(curve.scratch), "once_bytes": curve.once_bytes, "slope": curve.slope}
        for name, curve in curves.items()
    }


def run_fresh(code):
    """Run Python in a new process: this one has threads, which do not survive a fork."""
    code = f"from tests.unit.tracing.test_rehearsal import *\nprint(json.dumps({code}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def seen():
    return run_fresh("seen_of(Wide, KeepsScratch, KeepsScratchOfFew, TakesMoreForMore, Imports)")


def test_what_a_step_keeps_beside_its_tensors_is_expected_at_every_size(seen):
    assert KEPT_BYTES - 4 * MIB <= seen["KeepsScratch"]["fixed_bytes"] <= KEPT_BYTES + 16 * MIB


def test_where_a_larger_size_cannot_run_a_little_more_is_expected(seen):
    few = seen["KeepsScratchOfFew"]
    assert KEPT_BYTES - 4 * MIB <= few["fixed_bytes"] <= KEPT_BYTES + 16 * MIB
    assert few["doubt_bytes"] == int(KERNEL_DOUBT * few["fixed_bytes"])


def scratch_of(*, smaller, larger):
    """What kernels should take that took so many MiB with 10 and with 40 samples."""
    real = Fork.start(lambda: [smaller * MIB, larger * MIB])
    replayed = tuple(Fork.start(lambda: 0) for _ in range(2))
    return Rehearsal(sizes=(10, 40), real=real, replayed=replayed).scratch()


def test_a_step_from_one_size_to_the_other_may_be_followed_by_another():
    assert scratch_of(smaller=20, larger=20) == Scratch(fixed_bytes=20 * MIB, seen_at=40)
    assert scratch_of(smaller=12, larger=28) == Scratch(fixed_bytes=28 * MIB, doubt_bytes=16 * MIB, seen_at=40)
    assert scratch_of(smaller=43, larger=34) == Scratch(fixed_bytes=34 * MIB, doubt_bytes=9 * MIB, seen_at=40)


def test_what_grows_nearly_as_the_batch_does_is_no_step():
    assert scratch_of(smaller=14, larger=44) == Scratch(fixed_bytes=4 * MIB, each_bytes=MIB, seen_at=40)


def test_what_a_step_takes_for_every_sample_is_expected_for_every_sample(seen):
    assert 0.4 * MIB <= seen["TakesMoreForMore"]["each_bytes"] <= 0.7 * MIB


def waste_learnt(*, replayed, real):
    """Of a job of 500 MiB that has 20 MiB of its own modules and whose kernels take 10."""
    curve = TracedCurve(scratch=Scratch(fixed_bytes=10 * MIB))
    traced = {"once_bytes": 20 * MIB, "shared_bytes": 64 * MIB}
    for size in (8, 16):
        curve.enter({size: {"peak_bytes": 250 * MIB, "grown_bytes": (250 + replayed + 20) * MIB, **traced}})
    curve.learn_waste(8, (250 + real + 20) * MIB)
    return curve.waste()[16] / MIB


def test_less_waste_than_its_trace_at_half_of_a_size_is_expected_of_the_whole_too():
    assert waste_learnt(replayed=90, real=100) == pytest.approx(90)
    assert waste_learnt(replayed=90, real=70) == pytest.approx(70)  # two thirds of the way
    assert waste_learnt(replayed=90, real=130) == pytest.approx(110)


def test_waste_is_never_less_than_nothing_and_not_all_of_what_a_single_run_shows_is_believed():
    assert waste_learnt(replayed=0, real=0) == 0
    assert waste_learnt(replayed=90, real=1000) == pytest.approx(1.5 * 100 - 10)


def test_a_real_run_on_the_heap_tells_how_much_of_the_waste_is_real(heap):
    asked, unasked = run_fresh("[curve_of(each).waste_ratio for each in (KeepsScratch, KeepsScratchOfFew)]")
    assert asked == pytest.approx(1, abs=0.1)  # tensors that are a mapping each waste nothing
    assert unasked is None  # the larger size could not run


def test_what_kernels_take_is_no_waste_where_the_heap_was_not_asked():
    curve = TracedCurve(scratch=Scratch(fixed_bytes=50 * MIB))
    traced = {"once_bytes": 0, "shared_bytes": 0}
    curve.enter({8: {"peak_bytes": 250 * MIB, "grown_bytes": 250 * MIB, **traced}})
    assert curve.waste() == {8: 0}


def test_what_building_takes_beside_tensors_is_taken_once_and_no_waste(seen):
    assert abs(seen["Imports"]["once_bytes"] - KEPT_BYTES) <= 8 * MIB
    assert seen["Imports"]["slope"] < 1.05


def test_a_step_that_keeps_nothing_is_expected_to_take_little(seen):
    assert seen["Wide"]["fixed_bytes"] <= 16 * MIB
    assert seen["Wide"]["each_bytes"] == 0


def seen_quickly_of(*workload_classes):
    rehearsal.LONGEST_SECONDS = 0.2
    return seen_of(*workload_classes)


def test_a_rehearsal_that_fails_or_hangs_costs_no_curve():
    seen = run_fresh("seen_quickly_of(Refuses, Hangs)")
    assert [seen[name]["fixed_bytes"] for name in ("Refuses", "Hangs")] == [KERNEL_BYTES, KERNEL_BYTES]


def test_a_job_too_small_to_tell_is_not_rehearsed():
    small = MemoryCurve(((8, MIB), (32, 4 * MIB)))
    assert Rehearsal.start(Wide, Case(), small, goal=100, limit_bytes=2**40) is None


def wait_for_a_child():
    subprocess.run([sys.executable, "-c", "while True: pass"])


def end_what_waits():
    fork = Fork.start(wait_for_a_child)
    while not (children := psutil.Process(fork.pid).children()):
        pass
    result = fork.result(seconds=0.1)
    return [result, len(psutil.wait_procs(children, timeout=60)[1])]


def test_a_call_in_a_fork_returns_a_value_or_says_why_not_and_is_ended_with_all_that_it_started():
    calls = "in_forks([lambda: 7, lambda: {'a': [1]}, lambda: 1 / 0, lambda: os._exit(1)])"
    assert run_fresh(f"{calls} + end_what_waits()") == [
        7,
        {"a": [1]},
        {"problem": "ZeroDivisionError: division by zero"},
        {"problem": "the process died"},
        {"problem": "no result within 0.1 s"},
        0,
    ]
