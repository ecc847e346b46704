"""Rungs that brim applies by itself need what the same lines need when written by hand."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import brim
from brim.cases import Case
from brim.devices.catalog import Gpu
from brim.errors import InputError
from brim.planning.answer import Wanted
from brim.planning.rungs import AUTOCAST, CHECKPOINTING, CHUNKED, FUSED, NUM_CHUNKS
from brim.tracing import trace
from brim.tracing.checkpointing import checkpoint_blocks
from brim.tracing.ladder import trace_job
from brim.tracing.variants import with_gradients_held, with_rung

WIDTH, TOKENS, VOCABULARY = 64, 32, 4096
SMALL = Gpu(name="small", memory_bytes=2 * 10**9, capability=(8, 0))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Plain(brim.Workload):
    """A small language model in float32, as people write it first."""

    fused = False

    def build(self):
        self.embed = nn.Embedding(VOCABULARY, WIDTH).to(self.device)
        self.model = nn.ModuleDict({"blocks": nn.ModuleList(Block() for _ in range(4))}).to(self.device)
        self.head = nn.Linear(WIDTH, VOCABULARY).to(self.device)
        parameters = [*self.embed.parameters(), *self.model.parameters(), *self.head.parameters()]
        self.optimizer = torch.optim.AdamW(parameters, fused=self.fused)

    def batch(self, size):
        return torch.randint(0, VOCABULARY, (size, TOKENS), device=self.device)

    def hidden(self, batch):
        x = self.embed(batch)
        for block in self.model["blocks"]:
            x = block(x)
        return x

    def loss(self, batch):
        return F.cross_entropy(self.head(self.hidden(batch)).flatten(0, 1), batch.flatten())

    def step(self, batch):
        self.loss(batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Autocasted(Plain):
    def step(self, batch):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Checkpointed(Plain):
    def build(self):
        super().build()
        for block in self.model["blocks"]:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)


class Fused(Plain):
    fused = True


class Chunked(Plain):
    """The lines of the rung, on this model."""

    def loss(self, batch):
        def loss_of_part(hidden, labels):
            return F.cross_entropy(self.head(hidden), labels, reduction="sum")

        hidden, labels = self.hidden(batch).flatten(0, 1), batch.flatten()
        parts = zip(hidden.chunk(NUM_CHUNKS), labels.chunk(NUM_CHUNKS), strict=True)
        return (
            sum(checkpoint(loss_of_part, *part, use_reentrant=False, preserve_rng_state=False) for part in parts)
            / (labels != -100).sum()
        )


class Accumulating(Plain):
    def step(self, batch):
        for _ in range(3):
            (self.loss(batch) / 3).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Classifier(brim.Workload):
    """No blocks, no vocabulary, an optimizer of its own."""

    def build(self):
        self.model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(self.device)
        self.weights = list(self.model.parameters())

    def batch(self, size):
        return torch.zeros(size, 64, device=self.device)

    def step(self, batch):
        self.model(batch).square().mean().backward()
        with torch.no_grad():
            for weight in self.weights:
                weight -= 0.1 * weight.grad
                weight.grad = None


class Evaluating(Classifier):
    kind = "eval"


def peak(workload_class, microbatch=64):
    return trace(workload_class, Case(), microbatch, capability=(8, 0)).peak_bytes


@pytest.mark.parametrize(("kind", "by_hand"), [(FUSED, Fused), (AUTOCAST, Autocasted), (CHECKPOINTING, Checkpointed)])
def test_a_rung_needs_what_the_same_lines_need_by_hand(kind, by_hand):
    variant = with_rung(kind, Plain)
    assert peak(variant.workload_class) == peak(by_hand)
    assert variant.obstacle is None
    if kind is not FUSED:
        assert peak(by_hand) < peak(Plain)


def test_a_fused_optimizer_shows_where_the_batch_is_small():
    assert peak(with_rung(FUSED, Plain).workload_class, 1) == peak(Fused, 1) < peak(Plain, 1)


def test_one_chunk_holds_what_chunks_hold_that_come_one_after_another():
    assert peak(with_rung(CHUNKED, Plain).workload_class) == pytest.approx(peak(Chunked), rel=0.05)
    assert peak(Chunked) < 0.5 * peak(Plain)


def test_the_chunked_loss_that_is_proposed_is_the_loss():
    torch.manual_seed(0)
    plain, chunked = (brim.workload.prepare(each, Case(), "cpu") for each in (Plain, Chunked))
    plain.build()
    chunked.build()
    for name in ("embed", "model", "head"):
        getattr(chunked, name).load_state_dict(getattr(plain, name).state_dict())
    batch = plain.batch(3)
    torch.testing.assert_close(chunked.loss(batch), plain.loss(batch))


def test_held_gradients_are_those_of_accumulation():
    assert peak(with_gradients_held(Plain).workload_class) == pytest.approx(peak(Accumulating), rel=0.01)
    assert peak(Accumulating) > peak(Plain)


def test_gradients_stay_held_under_every_rung():
    held = with_gradients_held(Plain).workload_class
    assert peak(with_rung(FUSED, held).workload_class) == pytest.approx(peak(held), rel=1e-5)  # its step counters


def test_what_does_not_apply_says_why():
    for kind, reason in ((FUSED, "no optimizer"), (CHUNKED, "no output layer"), (CHECKPOINTING, "no repeated blocks")):
        variant = with_rung(kind, Classifier)
        peak(variant.workload_class)
        assert reason in variant.obstacle


def test_a_models_own_switch_is_used_and_named():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=64))
    assert checkpoint_blocks("model", model) == "model.gradient_checkpointing_enable()"
    assert model.is_gradient_checkpointing


def test_every_list_of_blocks_is_checkpointed_and_gradients_stay_the_same():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, WIDTH), nn.Sequential(Block(), Block()), nn.Sequential(Block(), Block()))
    x = torch.randn(4, 8)
    model(x).square().mean().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    lines = checkpoint_blocks("model", model)
    model(x).square().mean().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    assert lines.startswith("for block in list(model[1]) + list(model[2]):")


def test_a_model_that_is_itself_a_list_of_blocks_is_checkpointed():
    lines = checkpoint_blocks("model", nn.Sequential(Block(), Block()))
    assert lines.startswith("for block in model:")


def test_batch_norm_inside_of_blocks_is_pointed_out():
    block = lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))  # noqa: E731
    lines = checkpoint_blocks("model", nn.ModuleDict({"blocks": nn.ModuleList([block(), block()])}))
    assert "halve its momentum" in lines


def test_the_ladder_is_traced_where_it_can_be_and_computed_where_not():
    told = []
    wanted = Wanted(effective=100_000, ranks=4)
    address = f"{__file__}:Plain"
    job = trace_job(address, gpu=SMALL, case=Case(), wanted=wanted, fill=0.9, tell=told.append)
    assert job.largest > 0
    assert job.breakdown["gradients"] > 0
    by_key = {rung.kind.key: rung for rung in job.ladder}
    assert {key for key, rung in by_key.items() if rung.basis == "traced"} == {
        "fused", "autocast", "chunked", "checkpointing",
    }  # fmt: skip
    assert by_key["chunked"].saved_bytes > 0
    assert "for block in model.blocks:" in by_key["checkpointing"].lines
    sizes = [job.largest, *(rung.largest for rung in job.ladder)]
    assert sizes == sorted(sizes)
    assert any("gradients held" in line for line in told)
    # Adam's two float32 moments in a byte each.
    assert by_key["eight_bit"].saved_bytes == pytest.approx(0.75 * job.breakdown["optimizer"], rel=0.01)


def test_a_plan_without_accumulation_is_traced_once_without_a_ladder():
    told = []
    job = trace_job(f"{__file__}:Plain", gpu=SMALL, case=Case(), wanted=Wanted(effective=8), fill=0.9, tell=told.append)
    assert job.ladder == ()
    assert len(told) == 1


def test_only_training_is_planned():
    with pytest.raises(InputError, match="brim predict"):
        trace_job(f"{__file__}:Evaluating", gpu=SMALL, case=Case(), wanted=Wanted(effective=8))
