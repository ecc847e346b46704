"""Which attention kernel a trace runs, seen by what it keeps and what its backward pass takes."""

import pytest
import torch
import torch.nn.functional as F

import brim
from brim.cases import Case
from brim.devices.catalog import find_gpu
from brim.tracing import trace
from brim.tracing.record import Phase
from brim.tracing.sizes import TracedSizes

HEADS, TOKENS = 8, 256


class Attends(brim.Workload):
    def build(self):
        shape = {"heads": self.case["heads"], "head": self.case["head"]}
        dtype = getattr(torch, self.case["dtype"])
        self.keys, self.values = (
            torch.zeros(1, shape["heads"], TOKENS, shape["head"], device=self.device, dtype=dtype, requires_grad=True)
            for _ in range(2)
        )

    def batch(self, size):
        dtype = getattr(torch, self.case["dtype"])
        return torch.zeros(size, HEADS, TOKENS, self.case["head"], device=self.device, dtype=dtype, requires_grad=True)

    def step(self, batch):
        keys, values = (each.expand(len(batch), -1, -1, -1) for each in (self.keys, self.values))
        is_grouped = self.case["heads"] != HEADS
        F.scaled_dot_product_attention(batch, keys, values, is_causal=True, enable_gqa=is_grouped).sum().backward()
        batch.grad = self.keys.grad = self.values.grad = None


def _made(capability, *, samples=4, heads=HEADS, head=64, dtype="float16"):
    case = Case({"heads": heads, "head": head, "dtype": dtype})
    record = trace(Attends, case, samples, steps=1, capability=capability).record
    sizes = {phase: [each.num_bytes for each in record.storages if each.phase is phase] for phase in Phase}
    return sizes[Phase.FORWARD], sizes[Phase.BACKWARD]


SCORES = 4 * HEADS * TOKENS * TOKENS * 2  # in half precision
ROWS = 4 * HEADS * TOKENS


def test_flash_attention_keeps_no_scores_and_adds_up_the_queries_gradient_in_float32():
    forward, backward = _made((8, 0))
    assert max(forward) < SCORES
    assert {ROWS * 4, ROWS * 64 * 4} <= set(backward)


def test_its_accumulator_is_rounded_up():
    _, backward = _made((8, 0), head=40)
    assert ROWS * 64 * 4 in backward


def test_heads_that_are_no_multiple_of_eight_are_padded_for_it():
    forward, _ = _made((8, 0), head=36)
    assert max(forward) < SCORES
    assert forward.count(ROWS * 40 * 2) >= 3


def test_grouped_keys_are_not_repeated_for_flash_attention_but_their_gradients_are():
    forward, backward = _made((8, 0), heads=2)
    assert forward.count(ROWS * 64 * 2) == 1  # the output
    assert backward.count(ROWS * 64 * 2) >= 3  # gradients of queries, and of keys and values for all heads


def test_grouped_keys_without_flash_attention_take_the_whole_matrix():
    forward, _ = _made((7, 5), heads=2)
    assert max(forward) >= SCORES


@pytest.mark.parametrize(("dtype", "head"), [("float32", 64), ("float32", 36), ("float16", 64)])
def test_memory_efficient_attention_adds_up_the_queries_gradient_in_tiles(dtype, head):
    forward, backward = _made((7, 5), dtype=dtype, head=head)
    assert max(forward) < SCORES
    assert ROWS * 64 * 4 in backward


def test_heads_that_no_fused_kernel_takes_take_the_whole_matrix():
    forward, _ = _made((7, 5), head=36)
    assert max(forward) >= SCORES


def test_bfloat16_is_attended_by_parts_where_no_fused_kernel_takes_it():
    forward, _ = _made((7, 5), dtype="bfloat16")
    assert max(forward) == 2 * SCORES  # in float32
    assert max(_made((7, 5))[0]) < SCORES


class Cast(brim.Workload):
    """Attends under autocast, with as many heads for the keys as the case says, which broadcast."""

    def build(self):
        self.keys = torch.zeros(1, self.case["heads"], TOKENS, 64, device=self.device, requires_grad=True)

    def batch(self, size):
        return torch.zeros(size, HEADS, TOKENS, 64, device=self.device, requires_grad=True)

    def step(self, batch):
        keys = self.keys.expand(len(batch), -1, -1, -1)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            F.scaled_dot_product_attention(batch, keys, keys, is_causal=True).sum().backward()
        batch.grad = self.keys.grad = None


def test_attention_by_parts_is_in_float32_under_autocast_too():
    record = trace(Cast, Case({"heads": HEADS}), 4, steps=1, capability=(7, 5)).record
    forward = [each.num_bytes for each in record.storages if each.phase is Phase.FORWARD]
    assert forward.count(2 * SCORES) == 3
    assert forward.count(SCORES) == 1  # the probabilities, which the operator returns in half precision


def test_heads_that_broadcast_are_attended_by_parts():
    record = trace(Cast, Case({"heads": 1}), 4, steps=1, capability=(8, 0)).record
    assert max(each.num_bytes for each in record.storages if each.phase is Phase.FORWARD) == 2 * SCORES
    record = trace(Cast, Case({"heads": HEADS}), 4, steps=1, capability=(8, 0)).record
    assert max(each.num_bytes for each in record.storages if each.phase is Phase.FORWARD) < SCORES


class Uneven(brim.Workload):
    """Attends causally, to values of another width or to more keys than there are queries."""

    def build(self):
        like = {"device": self.device, "dtype": torch.bfloat16, "requires_grad": True}
        self.keys = torch.zeros(1, HEADS, self.case["keys"], 64, **like)
        self.values = torch.zeros(1, HEADS, self.case["keys"], self.case["width"], **like)

    def batch(self, size):
        return torch.zeros(size, HEADS, TOKENS, 64, device=self.device, dtype=torch.bfloat16, requires_grad=True)

    def step(self, batch):
        keys, values = (each.expand(len(batch), -1, -1, -1) for each in (self.keys, self.values))
        attended = F.scaled_dot_product_attention(batch, keys, values, is_causal=True)
        assert attended.shape == (len(batch), HEADS, TOKENS, self.case["width"])
        attended.sum().backward()
        batch.grad = self.keys.grad = self.values.grad = None


@pytest.mark.parametrize(("keys", "width"), [(TOKENS, 32), (2 * TOKENS, 64)])
def test_what_flash_attention_does_not_serve_runs_in_the_memory_efficient_kernel(keys, width):
    case = Case({"keys": keys, "width": width})
    storages = trace(Uneven, case, 4, steps=1, capability=(8, 0)).record.storages
    forward, backward = (
        [each.num_bytes for each in storages if each.phase is phase] for phase in (Phase.FORWARD, Phase.BACKWARD)
    )
    assert max(forward) < SCORES
    assert ROWS * 64 * 4 in backward  # the queries' gradient in tiles


def test_values_of_a_width_that_no_fused_kernel_serves_keep_the_scores():
    forward = trace(Uneven, Case({"keys": TOKENS, "width": 36}), 4, steps=1, capability=(8, 0)).record.storages
    assert max(each.num_bytes for each in forward) >= SCORES


def test_amds_cards_without_fused_attention_keep_the_scores():
    case = {"heads": HEADS, "head": 64, "dtype": "float16"}
    fused, scores, same = (
        brim.predict(Attends, gpu=gpu, case=case, cap=4).peak(4).allocated_bytes
        for gpu in ("mi210", "rx-7900-xtx", "rx-6900-xt")
    )
    assert scores == same >= fused + SCORES / 2


def test_gpus_of_one_number_share_traces_only_where_both_have_fused_attention():
    traced = TracedSizes(Attends, Case({"heads": HEADS, "head": 64, "dtype": "float16"}), capability=(9, 0))
    assert traced.holds_for(find_gpu("mi210"))
    assert not traced.holds_for(find_gpu("mi100"))
