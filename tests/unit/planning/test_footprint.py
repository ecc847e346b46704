"""Known answers of the formulas, and their distance from traces of real models."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import brim
from brim.cases import Case
from brim.errors import InputError
from brim.planning.footprint import PRECISIONS, Training, checkpointed, footprint, num_trained, sharded, zero_bytes
from brim.planning.shapes import ModelShape, find_model
from brim.tracing import trace

GB = 10**9
GPT3 = ModelShape(
    name="gpt-3", hidden=12288, layers=96, heads=96, kv_heads=96, head_dim=128, intermediate=4 * 12288, vocab=51200,
    gated=False,
)  # fmt: skip


def test_an_8b_model_in_16_bit_holds_16_and_16_and_32_gigabytes():
    held = footprint(find_model("8b"), Training(seq_len=2048))
    assert round(held.parameters_bytes / GB) == 16
    assert round(held.gradients_bytes / GB) == 16
    assert round(held.optimizer_bytes / GB) == 32


def test_zero_on_64_ranks():
    found = [zero_bytes(7_500_000_000, stage=stage, ranks=64) / GB for stage in range(4)]
    assert found == pytest.approx([120, 31.4, 16.6, 1.88], rel=0.003)


def test_sharding_a_footprint_is_the_same_arithmetic():
    shape, training = find_model("7b"), Training(seq_len=512, precision="mixed")
    held = footprint(shape, training)
    for stage in range(4):
        if stage:
            held = sharded(held, stage=stage, ranks=64)
        assert held.state_bytes == pytest.approx(zero_bytes(shape.num_parameters, stage=stage, ranks=64), rel=1e-6)


@pytest.mark.parametrize(
    ("precision", "optimizer", "num_bytes"),
    [
        ("fp32", "adamw", 16),
        ("bf16", "adamw", 8),
        ("mixed", "adamw", 16),
        ("fp32", "sgd", 12),
        ("fp32", "adamw-8bit", 10),
        ("bf16", "adamw-8bit", 6),
    ],
)
def test_bytes_per_parameter(precision, optimizer, num_bytes):
    widths = PRECISIONS[precision]
    assert widths.weight + widths.gradient + widths.optimizer_bytes(optimizer) == num_bytes


@given(heads=st.integers(1, 64), head_dim=st.sampled_from([64, 128]), seq_len=st.integers(1, 8192))
def test_a_gpt_block_keeps_34_and_5as_over_h(heads, head_dim, seq_len):
    hidden = heads * head_dim
    shape = ModelShape(
        name="gpt", hidden=hidden, layers=1, heads=heads, kv_heads=heads, head_dim=head_dim, intermediate=4 * hidden,
        vocab=1, gated=False,
    )  # fmt: skip
    kept = seq_len * shape.block_bytes_per_token(seq_len=seq_len, fused_attention=False)
    assert kept == pytest.approx(seq_len * hidden * (34 + 5 * heads * seq_len / hidden))


def test_checkpointing_keeps_two_bytes_of_every_blocks_input():
    training = Training(seq_len=2048)
    held = footprint(GPT3, training)
    kept = checkpointed(held, num_blocks=96, block_input_bytes=2 * 2048 * GPT3.hidden)
    assert kept.activations_sample_bytes == 96 * 2 * 2048 * 12288
    assert kept.recomputed_sample_bytes == held.activations_sample_bytes / 96


def test_adapters_are_trained_and_the_rest_is_frozen():
    shape = find_model("7b")
    lora, qlora = (footprint(shape, Training(seq_len=512, method=method)) for method in ("lora", "qlora"))
    trained = num_trained(shape, Training(seq_len=512, method="lora"))
    # Rank 16 on all matrices of Llama 2 7B, as peft prints it.
    assert trained == 39_976_960
    assert lora.gradients_bytes == 4 * trained
    assert lora.parameters_bytes == 2 * shape.num_parameters + 4 * trained
    assert qlora.parameters_bytes < 0.35 * lora.parameters_bytes
    assert qlora.optimizer_bytes == lora.optimizer_bytes


class Accumulating(brim.Workload):
    """A Llama in bfloat16 that accumulates two microbatches, so that gradients are held at the loss."""

    def build(self):
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(**SHAPE, use_cache=False, tie_word_embeddings=False)
        self.model = LlamaForCausalLM(config).to(torch.bfloat16).to(self.device).train()
        if self.case["checkpointing"]:
            self.model.gradient_checkpointing_enable()
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def batch(self, size):
        return torch.randint(0, 100, (size, self.case["seq_len"]), device=self.device)

    def step(self, batch):
        for _ in range(2):
            self.model(input_ids=batch, labels=batch).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


SHAPE = {
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 8000,
}


@pytest.mark.parametrize(
    ("seq_len", "microbatch", "checkpointing"), [(512, 4, False), (512, 4, True), (8, 1, False), (128, 32, False)]
)
def test_formulas_come_within_five_percent_of_a_trace(seq_len, microbatch, checkpointing):
    traced = trace(
        Accumulating, Case({"seq_len": seq_len, "checkpointing": checkpointing}), microbatch, capability=(8, 0)
    )
    shape = ModelShape(
        name="llama", hidden=512, layers=4, heads=8, kv_heads=8, head_dim=64, intermediate=1376, vocab=8000
    )
    held = footprint(shape, Training(seq_len=seq_len))
    if checkpointing:
        held = checkpointed(held, num_blocks=4, block_input_bytes=2 * seq_len * shape.hidden)
    assert held.peak_bytes(microbatch) == pytest.approx(traced.peak_bytes, rel=0.05)


@given(limit=st.integers(1, 200 * GB), seq_len=st.integers(1, 8192), method=st.sampled_from(["full", "lora", "qlora"]))
def test_the_largest_fits_and_one_more_does_not(limit, seq_len, method):
    held = footprint(find_model("3b"), Training(seq_len=seq_len, method=method))
    largest = held.largest(limit)
    if largest:
        assert held.peak_bytes(largest) <= limit
    assert held.peak_bytes(largest + 1) > limit


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "dora"}, "full, lora, qlora"),
        ({"task": "vision"}, "classification, qa, generation"),
        ({"precision": "fp8"}, "bf16, mixed, fp32"),
        ({"optimizer": "lion"}, "adamw, adamw-8bit, sgd"),
        ({"seq_len": 0}, "seq_len is 0"),
        ({"lora_rank": -1}, "lora_rank is -1"),
    ],
)
def test_training_that_is_not_known_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        Training(**{"seq_len": 512, **arguments})
