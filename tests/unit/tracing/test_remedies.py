import re

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import brim
from brim.cases import Case
from brim.tracing import trace
from brim.tracing.changes import (
    TracedJob,
    checkpointed,
    in_half_precision,
    sharded,
    with_autocast,
    with_eight_bits,
    without_foreach,
)
from brim.tracing.record import Phase, Record, Storage
from brim.tracing.remedies import Remedies

MIB = 2**20
SIDE = 512


class Deep(brim.Workload):
    """Sixteen blocks, each of which keeps one tensor of 64 MiB."""

    def build(self):
        blocks = [nn.Sequential(nn.Conv2d(64, 64, 1, bias=False), nn.ReLU()) for _ in range(16)]
        self.model = nn.Sequential(*blocks).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def batch(self, size):
        return torch.randn(size, 64, SIDE, SIDE, device=self.device)

    def forward(self, batch):
        return self.model(batch)

    def step(self, batch):
        self.forward(batch).mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class EachBlock(Deep):
    def forward(self, batch):
        for block in self.model:
            batch = checkpoint(block, batch, use_reentrant=False)
        return batch


class InFour(Deep):
    def forward(self, batch):
        return checkpoint_sequential(self.model, 4, batch, use_reentrant=False)


class InEight(Deep):
    def forward(self, batch):
        return checkpoint_sequential(self.model, 8, batch, use_reentrant=False)


class UnderAutocast(Deep):
    def forward(self, batch):
        with torch.autocast("cuda", dtype=torch.float16):
            return self.model(batch)


class Wide(Deep):
    def build(self):
        self.model = nn.Sequential(*[nn.Linear(8192, 8192, bias=False) for _ in range(6)]).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **self.settings())

    def settings(self):
        return {}

    def batch(self, size):
        return torch.randn(size, 8192, device=self.device)


class OneByOne(Wide):
    def settings(self):
        return {"foreach": False}


class Inference(Wide):
    kind = "eval"

    @torch.no_grad()
    def step(self, batch):
        self.model(batch)


def _job(workload_class, microbatch=1):
    record = trace(workload_class, Case(), microbatch, capability=(8, 6)).record
    return TracedJob(record=record, is_training=workload_class.kind == "train")


def _changed_peak_bytes(job, change, **options):
    return job.peak_bytes(change(job, job.sizes, **options))


def _advice(job, capacity_bytes, **options):
    return Remedies(job, capacity_bytes=capacity_bytes, **options).advice()


def test_what_checkpointing_needs_at_best_is_close_below_what_traces_with_it_need():
    estimated = _changed_peak_bytes(_job(Deep), checkpointed)
    traced = [_job(each).record.peak()[0] for each in (EachBlock, InFour, InEight)]
    assert 0.85 * min(traced) <= estimated <= min(traced)


@pytest.mark.parametrize(
    ("job", "change", "traced"),
    [(Wide, without_foreach, OneByOne), (Deep, with_autocast, UnderAutocast)],
)
def test_a_change_saves_what_a_trace_with_it_saves(job, change, traced):
    assert _changed_peak_bytes(_job(job), change) == pytest.approx(_job(traced).record.peak()[0], rel=0.01)


def test_an_optimizer_in_8_bits_holds_two_bytes_a_parameter_and_nothing_for_a_moment():
    job = _job(Wide)
    parameters = job.record.breakdown()["parameters"]
    # Weights, gradients and two moments of a byte each.
    assert _changed_peak_bytes(job, with_eight_bits) == pytest.approx(2.5 * parameters, rel=0.02)


def test_sharding_divides_all_of_the_state_and_gathers_the_largest_module():
    job = _job(Wide)
    whole, parameters = job.record.peak()[0], job.record.breakdown()["parameters"]
    assert _changed_peak_bytes(job, sharded, num_ranks=4) == pytest.approx(whole / 4 + parameters / 6, rel=0.02)


def test_recomputation_is_seen_and_not_advised_again():
    assert not _job(Deep).recomputes
    job = _job(InFour)
    assert job.recomputes
    assert "checkpointing" not in _advice(job, job.record.peak()[0] // 2)


@pytest.mark.parametrize(
    ("workload_class", "share", "advice"),
    [
        (Wide, 0.97, "foreach=False in the optimizer would make it fit, with tensors of"),
        (Wide, 0.6, "an 8-bit optimizer would make it fit, with tensors of .* GiB instead of .* GiB"),
        (Wide, 0.4, "an 8-bit optimizer and pure bfloat16 training would make it fit, with tensors of .*, at best"),
        (Wide, 0.15, r"sharding over \d GPUs \(FSDP\) would make it fit, with tensors of .*, at best"),
        (Deep, 0.6, "checkpointing would make it fit, with tensors of .* instead of .*, at best"),
        (Deep, 0.35, "checkpointing and autocast to half precision would make it fit, with tensors of"),
        (Deep, 0.05, "even checkpointing and pure bfloat16 training together would miss by about .*; it takes"),
        (Inference, 0.6, "half precision would make it fit, with tensors of"),
    ],
)
def test_the_cheapest_change_that_is_enough_is_told(workload_class, share, advice):
    job = _job(workload_class)
    told = _advice(job, int(share * job.record.peak()[0]), expandable=True)
    assert re.match(advice, told), told


def test_memory_that_is_only_fragmented_is_answered_with_expandable_segments():
    # A tensor of 2 MiB lies where one of 30 MiB was, whose segment can neither be given back nor hold 40 MiB.
    sizes = [30 * MIB, 2 * MIB, 40 * MIB]
    storages = tuple(Storage(num_bytes=size, phase=Phase.FORWARD, module="") for size in sizes)
    events = ((0, sizes[0]), (0, 0), (1, sizes[1]), (2, sizes[2]))
    job = TracedJob(record=Record(storages=storages, events=events), is_training=False)
    told = _advice(job, 60 * MIB)
    assert told.startswith("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True would make it fit"), told


def test_parameters_of_no_module_are_gathered_one_at_a_time():
    storages = tuple(Storage(num_bytes=size, phase=Phase.BUILD, module="") for size in (8, 16, 8))
    job = TracedJob(record=Record(storages=storages, events=((0, 8), (1, 16), (2, 8))), is_training=False)
    assert sharded(job, job.sizes, num_ranks=4) == [2, 4 + 16, 2]


def test_state_in_eight_bits_is_not_halved_once_more():
    storages = (
        Storage(num_bytes=80, phase=Phase.BUILD, module="", float_bytes=4, kind="parameters"),
        Storage(num_bytes=80, phase=Phase.OPTIMIZER, module="", float_bytes=4, kind="optimizer"),
    )
    job = TracedJob(record=Record(storages=storages, events=((0, 80), (1, 80))), is_training=True)
    assert job.kinds[1] == "optimizer"
    assert in_half_precision(job, with_eight_bits(job, job.sizes)) == [40, 20]
    assert in_half_precision(job, job.sizes) == [40, 40]


def test_half_precision_leaves_what_is_no_float32():
    storages = (
        Storage(num_bytes=8, phase=Phase.BUILD, module="", float_bytes=4),
        Storage(num_bytes=8, phase=Phase.BUILD, module="", float_bytes=2),
        Storage(num_bytes=8, phase=Phase.BUILD, module=""),
    )
    job = TracedJob(record=Record(storages=storages, events=((0, 8), (1, 8), (2, 8))), is_training=False)
    assert in_half_precision(job, job.sizes) == [4, 8, 8]
