"""Transformer layers of torch in evaluation: what CUDA's fast path holds."""

import pytest
import torch
from torch import nn

import brim
from brim.cases import Case
from brim.tracing import trace
from brim.tracing.fast_path import functions

_WIDTH, _UP, _LENGTH, _NUM_LAYERS = 64, 256, 48, 2
_NUM_SAMPLES = 4
_UP_BYTES = _NUM_SAMPLES * _LENGTH * _UP * 4
_SCORES_BYTES = _NUM_SAMPLES * 2 * _LENGTH * _LENGTH * 4
GPU = (8, 6)


class Encodes(brim.Workload):
    kind = "eval"
    norm_first = False
    has_padding = False

    def build(self):
        layer = nn.TransformerEncoderLayer(_WIDTH, 2, _UP, batch_first=True, norm_first=self.norm_first)
        self.model = nn.TransformerEncoder(layer, _NUM_LAYERS).to(self.device).eval()

    def batch(self, size):
        return torch.ones(size, _LENGTH, _WIDTH, device=self.device)

    @torch.no_grad()
    def step(self, batch):
        padding = torch.zeros(batch.shape[:2], dtype=torch.bool, device=batch.device) if self.has_padding else None
        assert self.model(batch, src_key_padding_mask=padding).shape == batch.shape


class NormsFirst(Encodes):
    norm_first = True


class Padded(Encodes):
    has_padding = True


class Trains(Encodes):
    def build(self):
        super().build()
        self.model.train()


class RecordsAGraph(Encodes):
    def step(self, batch):
        self.model(batch)


def num_of_size(workload_class, num_bytes):
    storages = trace(workload_class, Case(), _NUM_SAMPLES, capability=GPU).record.storages
    return sum(each.num_bytes == num_bytes for each in storages)


@pytest.mark.parametrize("workload_class", [Encodes, NormsFirst, Padded])
def test_in_evaluation_the_activation_is_computed_in_place(workload_class):
    assert num_of_size(workload_class, _UP_BYTES) == _NUM_LAYERS


@pytest.mark.parametrize("workload_class", [Trains, RecordsAGraph])
def test_otherwise_the_activation_is_another_tensor(workload_class):
    assert num_of_size(workload_class, _UP_BYTES) >= 2 * _NUM_LAYERS


def test_the_scores_are_kept_with_padding_alone():
    assert num_of_size(Encodes, _SCORES_BYTES) == 0
    assert num_of_size(Padded, _SCORES_BYTES) >= _NUM_LAYERS


@pytest.mark.parametrize("averages", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_returns_what_torchs_does(need_weights, averages):
    attention = nn.MultiheadAttention(_WIDTH, 2, batch_first=True).eval()
    inputs = torch.ones(3, 5, _WIDTH)
    projections = (
        *(attention.in_proj_weight, attention.in_proj_bias),
        *(attention.out_proj.weight, attention.out_proj.bias),
    )
    arguments = inputs, inputs, inputs, _WIDTH, 2, *projections, None, need_weights, averages
    own = functions(nn.functional.scaled_dot_product_attention)[torch._native_multi_head_attention]
    with torch.no_grad():
        expected, found = torch._native_multi_head_attention(*arguments), own(*arguments)
    assert found[0].shape == expected[0].shape
    assert (found[1].shape == expected[1].shape) if need_weights else found[1] is None
