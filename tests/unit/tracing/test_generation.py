"""transformers' own generate on fake tensors: to its longest text, and no further."""

import pytest
import torch
import transformers
from tests.conftest import WORKLOADS

import brim
from brim.cases import Case
from brim.tracing import predict, trace
from brim.workload import load, prepare

NUM_TOKENS = 2  # a prompt so short that the cache, not the prompt, makes the peak


class Generate(brim.Workload):
    kind = "generate"

    def build(self):
        config = transformers.GPT2Config(
            n_embd=32,
            n_layer=2,
            n_head=2,
            vocab_size=64,
            n_positions=256,
            bos_token_id=0,
            eos_token_id=0,
            pad_token_id=0,
        )
        self.model = transformers.GPT2LMHeadModel(config).to(self.device).eval()
        self.num_passes = 0
        self.model.transformer.register_forward_hook(self.count)

    def count(self, *_):
        type(self).num_passes = getattr(type(self), "num_passes", 0) + 1

    def batch(self, size):
        return torch.ones(size, NUM_TOKENS, dtype=torch.long, device=self.device)

    @torch.no_grad()
    def step(self, batch):
        self.model.generate(
            batch,
            attention_mask=torch.ones_like(batch),
            max_new_tokens=self.case.get("new", 16),
            do_sample=self.case.get("sample", False),
            num_beams=self.case.get("beams", 1),
        )


@pytest.mark.parametrize(("sample", "beams"), [(False, 1), (True, 1), (True, 3)])
def test_it_decodes_every_token_once(sample, beams):
    Generate.num_passes = 0
    trace(Generate, Case({"new": 16, "sample": sample, "beams": beams}), 4, capability=(8, 6))
    assert Generate.num_passes == 16


def test_the_memory_of_a_beam_search_is_that_of_a_real_one():
    case = Case({"new": 16, "beams": 3})
    workload = prepare(Generate, case, torch.device("cpu"))
    workload.build()
    workload.model.generation_config.eos_token_id = None  # so that no text ends early
    batch = workload.batch(4)
    with torch.profiler.profile(profile_memory=True) as profiler:
        workload.step(batch)
    real_bytes = _most_live_bytes(profiler)
    traced = trace(Generate, case, 4)
    build_bytes = traced.record.breakdown()["parameters"] + traced.record.breakdown()["inputs"]
    # The real search was not given a token that ends texts, and so holds a few kilobytes less.
    assert traced.peak_bytes - build_bytes == pytest.approx(real_bytes, rel=0.02)


def _most_live_bytes(profiler):
    """Return the most that operations held at once, by the allocator's own events."""
    live = most = 0
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most


def test_the_cache_grows_with_what_is_generated():
    peaks = [predict(Generate, gpu="rtx-3090", case={"new": new}).peak(512).allocated_bytes for new in (16, 32)]
    # Keys and values of two layers of 32 numbers for each of the 16 tokens more, in float32.
    assert peaks[1] - peaks[0] > 512 * 16 * 2 * 2 * 32 * 4


def test_a_question_of_the_users_own_is_not_answered():
    class Asks(Generate):
        def step(self, batch):
            if (batch > 3).any():
                super().step(batch)

    with pytest.raises(brim.BrimError, match="asks for a tensor's value"):
        trace(Asks, Case(), 4, capability=(8, 6))


@pytest.mark.parametrize("crops", [2, 5])
def test_a_vision_language_model_is_traced_past_its_own_checks(crops):
    answers = load(f"{WORKLOADS}/vision_language.py:Answers")
    peaks = {size: trace(answers, Case({"max_crops": crops}), size).peak_bytes for size in (2, 4, 8)}
    assert peaks[8] - peaks[4] == pytest.approx(2 * (peaks[4] - peaks[2]), rel=0.01)
    assert peaks[4] > peaks[2]
