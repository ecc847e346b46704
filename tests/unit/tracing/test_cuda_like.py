"""What a trace for CUDA keeps where the CPU keeps something else."""

import pytest
import torch
from torch import nn

import brim
from brim.cases import Case
from brim.tracing import trace
from brim.tracing.gpu_questions import gpu_that_answers

NUM_VALUES = 2**20


class Drop(brim.Workload):
    def build(self):
        self.scale = nn.Parameter(torch.ones(NUM_VALUES // 4, device=self.device))
        self.dropout = nn.Dropout(self.case.get("p", 0.5))

    def batch(self, size):
        return torch.ones(size, NUM_VALUES // 4, device=self.device)

    def step(self, batch):
        (self.dropout(batch * self.scale)).sum().backward()
        self.scale.grad = None


def _activation_sizes(case, capability):
    record = trace(Drop, Case(case), 4, capability=capability).record
    kinds = record.kinds()
    return [each.num_bytes for each, kind in zip(record.storages, kinds, strict=True) if kind == "activations"]


@pytest.mark.parametrize(("capability", "mask_bytes"), [(None, 4 * NUM_VALUES), ((8, 6), NUM_VALUES)])
def test_dropout_keeps_a_byte_for_a_value_on_cuda_and_a_number_on_the_cpu(capability, mask_bytes):
    with_dropout = _activation_sizes({"p": 0.5}, capability)
    without = _activation_sizes({"p": 0.0}, capability)
    # Two steps, each with its mask.
    assert sum(with_dropout) - sum(without) == 2 * mask_bytes


def test_the_cpus_dropout_is_as_it_was_after_a_trace():
    trace(Drop, Case(), 4, capability=(8, 6))
    torch.manual_seed(0)
    dropped = nn.functional.dropout(torch.ones(1000, requires_grad=True), 0.5)
    assert dropped.grad_fn.name() == "MulBackward0"
    assert set(dropped.tolist()) == {0.0, 2.0}


def test_a_stream_that_an_optimizer_asks_for_captures_nothing_on_a_gpu_that_is_not_there():
    with gpu_that_answers((8, 6)):
        assert not torch.accelerator.current_stream().is_capturing()


class Pads(brim.Workload):
    def build(self):
        self.convolution = nn.Conv2d(4, 16, 3, padding=self.case["padding"]).to(self.device)

    def batch(self, size):
        return torch.ones(size, 4, 32, 32, device=self.device)

    def step(self, batch):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            result = self.convolution(batch)
        assert result.dtype is torch.bfloat16
        result.sum().backward()
        self.convolution.zero_grad()


@pytest.mark.parametrize("padding", [1, "same", "valid"])
def test_autocast_casts_convolutions_however_they_pad(padding):
    trace(Pads, Case({"padding": padding}), 4, steps=1, capability=(8, 6))
