"""Attention masks of transformers are left out in a trace where a run leaves them out."""

import pytest
import torch
import transformers
from tests.unit.tracing.test_trace import real_peak

import brim
from brim.cases import Case
from brim.tracing import trace

AMPERE = (8, 6)
NUM_TOKENS = 96
SIZE = 4
MASK_BYTES = SIZE * NUM_TOKENS**2


class Trains(brim.Workload):
    """A language model, of which no text is padded."""

    def build(self):
        config = transformers.LlamaConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            vocab_size=64,
            pad_token_id=0,
            use_cache=False,
        )
        self.model = transformers.LlamaForCausalLM(config).to(self.device)

    def batch(self, size):
        return torch.ones(size, NUM_TOKENS, dtype=torch.long, device=self.device).cumsum(-1) % 64

    def settings(self, texts):
        return {}

    def step(self, texts):
        self.model(input_ids=texts, labels=texts, **self.settings(texts)).loss.backward()
        self.model.zero_grad()


class Ones(Trains):
    def settings(self, texts):
        return {"attention_mask": torch.ones_like(texts)}


class Padded(Trains):
    def settings(self, texts):
        return {"attention_mask": (texts != 0).long()}


class Hides(Trains):
    def settings(self, texts):
        mask = torch.ones_like(texts)
        mask[:, :2] = 0
        return {"attention_mask": mask}


class Packed(Trains):
    def batch(self, size):
        texts = super().batch(size)
        return texts, texts.clone()

    def step(self, batch):
        texts, positions = batch
        self.model(input_ids=texts, labels=texts, position_ids=positions).loss.backward()
        self.model.zero_grad()


def _masks(workload):
    record = trace(workload, Case(), SIZE, capability=AMPERE).record
    return [storage for storage in record.storages if storage.num_bytes == MASK_BYTES and not storage.float_bytes]


@pytest.mark.parametrize("workload", [Trains, Ones])
def test_a_mask_that_hides_nothing_is_not_made(workload):
    assert not _masks(workload)


@pytest.mark.parametrize("workload", [Padded, Hides, Packed])
def test_a_mask_that_may_hide_something_is_made(workload):
    assert _masks(workload)


@pytest.mark.parametrize("workload", [Trains, Ones])
def test_on_the_cpu_the_peak_is_that_of_a_real_run(workload):
    assert trace(workload, Case(), SIZE).peak_bytes == pytest.approx(real_peak(workload, SIZE), rel=0.001)


def test_the_number_of_a_one_is_one():
    class Reads(Trains):
        def step(self, texts):
            ones = torch.ones_like(texts)
            assert ones[0, 0].item() == 1
            assert type(ones.float().clone()[0, 0].item()) is not bool
            ones.fill_(0)
            self.unknown = ones[0, 0].item()
            super().step(texts)

    assert trace(Reads, Case(), SIZE, capability=AMPERE).num_operations
