"""Tokens that follow from those before are entered as if they had been traced."""

import pytest
import torch
import transformers

import brim
from brim.cases import Case
from brim.tracing import decoding, trace
from brim.tracing.decoding import Tokens
from brim.tracing.record import Phase, Storage

AMPERE = (8, 6)
NUM_NEW = 44
NUM_AFTERWARDS = 20


class Generate(brim.Workload):
    """A prompt of two tokens, and many more."""

    kind = "generate"
    num_passes = 0

    def build(self):
        config = transformers.LlamaConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            vocab_size=64,
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=2,
        )
        self.model = transformers.LlamaForCausalLM(config).to(self.device).eval()
        self.model.model.register_forward_hook(self.count)

    @classmethod
    def count(cls, *_):
        cls.num_passes += 1

    def batch(self, size):
        return torch.ones(size, 2, dtype=torch.long, device=self.device)

    @torch.no_grad()
    def step(self, batch):
        self.num_passes = type(self).num_passes = 0
        self.texts = self.generate(batch, max_new_tokens=NUM_NEW)

    def generate(self, batch, **settings):
        return self.model.generate(batch, attention_mask=torch.ones_like(batch), do_sample=False, **settings)


class Beams(Generate):
    def generate(self, batch, **settings):
        return super().generate(batch, num_beams=3, **settings)


@pytest.mark.parametrize("workload", [Generate, Beams])
def test_a_long_generation_is_what_it_would_be_if_every_token_were_traced(workload, monkeypatch):
    short = trace(workload, Case(), 4, capability=AMPERE)
    num_passes = workload.num_passes
    monkeypatch.setattr(decoding, "_PERIODS", ())
    whole = trace(workload, Case(), 4, capability=AMPERE)
    assert num_passes < NUM_NEW * 0.6
    assert workload.num_passes == NUM_NEW
    assert short.peak_bytes == pytest.approx(
        whole.peak_bytes, rel=0.005
    )  # what is made after the last token is shorter
    assert short.record.breakdown() == pytest.approx(whole.record.breakdown(), rel=0.01)
    sizes = [[each.num_bytes for each in traced.record.storages if each.num_bytes] for traced in (short, whole)]
    assert abs(len(sizes[1]) - len(sizes[0])) <= 1
    # Only what is made after the last token differs: the cache of beams once more in another order, and the texts.
    assert sizes[0][:-NUM_AFTERWARDS] == sizes[1][: len(sizes[0]) - NUM_AFTERWARDS]


def test_the_texts_are_as_long_as_they_would_be():
    class Looks(Generate):
        def step(self, batch):
            super().step(batch)
            type(self).shape = self.texts.shape

    trace(Looks, Case(), 4, capability=AMPERE)
    assert Looks.shape == (4, 2 + NUM_NEW)
    assert Looks.num_passes < NUM_NEW


def test_where_more_than_the_texts_is_asked_for_every_token_is_traced():
    class Scores(Generate):
        def generate(self, batch, **settings):
            return super().generate(batch, return_dict_in_generate=True, output_scores=True, **settings)

    trace(Scores, Case(), 4, capability=AMPERE)
    assert Scores.num_passes == NUM_NEW


def _tokens(sizes_of, *, num_tokens, keeps=()):
    """Return tokens that make one storage each, which dies with the next; some are kept for good."""
    storages, events = [], []
    tokens = Tokens(storages, events)
    before = None
    for token in range(num_tokens):
        number, size = len(storages), sizes_of(token)
        storages.append(Storage(num_bytes=size, phase=Phase.FORWARD, module=""))
        events.append((number, size))
        if before is not None and token not in keeps:
            events.append((before, 0))
        before = number
        tokens.end_token()
    return tokens, storages, events


def test_sizes_that_are_rounded_up_to_eight_are_continued():
    def rounded(token):
        return -(-token // 8) * 8 * 100

    tokens, storages, events = _tokens(rounded, num_tokens=30)
    heirs = tokens.add(70)
    assert [storage.num_bytes for storage in storages] == [rounded(token) for token in range(100)]
    assert heirs == {29: 99}
    assert events[-2:] == [(99, rounded(99)), (98, 0)]


def test_of_a_long_generation_some_tokens_are_left_out_but_not_the_last(monkeypatch):
    monkeypatch.setattr(decoding, "MOST_EVENTS", 20)
    tokens, storages, _ = _tokens(lambda token: 100 * token, num_tokens=30)
    assert tokens.stride(100) == 10
    tokens.add(100)
    assert [storage.num_bytes for storage in storages[30:]] == [100 * token for token in range(39, 130, 10)]


@pytest.mark.parametrize("num_tokens", [1, 17])
def test_few_tokens_say_nothing(num_tokens):
    assert _tokens(lambda token: 100, num_tokens=num_tokens)[0].period() is None


def test_what_is_kept_or_grows_unevenly_or_shrinks_is_not_continued():
    assert _tokens(lambda token: 100, num_tokens=40)[0].period() == 1
    assert _tokens(lambda token: 100, num_tokens=40, keeps=range(40))[0].period() is None
    assert _tokens(lambda token: token**2, num_tokens=60)[0].period() is None
    assert _tokens(lambda token: 8000 - 100 * token, num_tokens=60)[0].period() is None
