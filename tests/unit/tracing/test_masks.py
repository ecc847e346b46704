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


class OnesInParts(Trains):
    def settings(self, texts):
        mask = torch.full_like(texts[:1], 1).repeat(len(texts), 1)
        return {"attention_mask": torch.cat([mask[:, :2], mask[:, 2:].bool().long()], 1)}


class Padded(Trains):
    def settings(self, texts):
        return {"attention_mask": (texts != 0).long()}


class Hides(Trains):
    def settings(self, texts):
        mask = torch.ones_like(texts)
        mask[:, :2] = 0
        return {"attention_mask": mask}


class HidesByView(Hides):
    how = staticmethod(lambda mask: mask[:, :2].zero_())

    def settings(self, texts):
        mask = torch.ones_like(texts)
        self.how(mask)
        return {"attention_mask": mask}


class HidesByRows(HidesByView):
    how = staticmethod(lambda mask: [row[:2].fill_(0) for row in mask])


class HidesByData(HidesByView):
    how = staticmethod(lambda mask: mask.data[:, :2].zero_())


class HidesByResult(HidesByView):
    how = staticmethod(lambda mask: torch.mul(mask, mask.cumsum(-1), out=mask))


class PackedInStep(Trains):
    def settings(self, texts):
        return {"position_ids": texts.clone()}


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


@pytest.mark.parametrize("workload", [Trains, Ones, OnesInParts])
def test_a_mask_that_hides_nothing_is_not_made(workload):
    assert not _masks(workload)


@pytest.mark.parametrize(
    "workload",
    [Padded, Hides, HidesByView, HidesByRows, HidesByData, HidesByResult, Packed, PackedInStep],
)
def test_a_mask_that_may_hide_something_is_made(workload):
    assert _masks(workload)


@pytest.mark.parametrize("workload", [Trains, Ones])
def test_on_the_cpu_the_peak_is_that_of_a_real_run(workload):
    assert trace(workload, Case(), SIZE).peak_bytes == pytest.approx(real_peak(workload, SIZE), rel=0.001)
