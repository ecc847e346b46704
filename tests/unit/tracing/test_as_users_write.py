"""What people write that CUDA treats otherwise than the CPU, or that a trace tells."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import brim
from brim.cases import Case
from brim.errors import TraceError
from brim.tracing import trace
from brim.tracing.sizes import TracedSizes

AMPERE = (8, 0)


class Plain(brim.Workload):
    def build(self):
        self.model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def batch(self, size):
        return torch.randn(size, 64, device=self.device)

    def loss(self, batch):
        return self.model(batch).square().mean()

    def step(self, batch):
        self.loss(batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class CastsOnTheHost(Plain):
    def loss(self, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return super().loss(batch)


class Casts(Plain):
    def loss(self, batch):
        with torch.autocast("cuda", torch.bfloat16), torch.autocast("cpu", enabled=False):
            return super().loss(batch)


class CastsAlone(Plain):
    def loss(self, batch):
        with torch.autocast("cuda", torch.bfloat16):
            return super().loss(batch)


def test_autocast_of_the_host_casts_nothing_on_the_gpu_and_leaves_that_of_the_gpu_alone():
    plain, host, both, alone = (
        trace(each, Case(), 512, capability=AMPERE).peak_bytes for each in (Plain, CastsOnTheHost, Casts, CastsAlone)
    )
    assert host == plain != alone
    assert both == alone


class Entropy(Plain):
    def loss(self, batch):
        with torch.autocast("cuda", torch.float16):
            return F.binary_cross_entropy(self.model(batch).sigmoid(), torch.rand_like(batch))


class Flex(Plain):
    def loss(self, batch):
        heads = self.model(batch).view(len(batch), 2, 2, 16)
        return flex_attention(heads, heads, heads).sum()


class OtherGpu(Plain):
    def build(self):
        super().build()
        self.model[2].to("cuda:1")


class Early(Plain):
    def __init__(self):
        self.early = nn.Linear(8, 8).to(self.device)


class Exits(Plain):
    def build(self):
        raise SystemExit("no GPU found")


@pytest.mark.parametrize(
    ("workload_class", "told"),
    [
        (Entropy, r"step fails: .*unsafe to autocast on CUDA: use binary_cross_entropy_with_logits"),
        (Flex, r"FlexAttention is not traced"),
        (OtherGpu, r"cuda:1 is another GPU"),
        (Early, r"__init__ fails: .*self\.early.*Make things in `build`"),
        (Exits, r"build ends the program \(no GPU found\)"),
    ],
)
def test_what_does_not_run_is_told(workload_class, told):
    with pytest.raises(TraceError, match=told):
        trace(workload_class, Case(), 4, capability=AMPERE)


class Wrapper(torch.optim.Optimizer):
    """Is an optimizer by name and lets another step, as Accelerate's is."""

    def __init__(self, optimizer):
        self.optimizer, self.param_groups, self.state = optimizer, optimizer.param_groups, optimizer.state

    def step(self, closure=None):
        self.optimizer.step(closure)

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)


def test_a_wrapper_of_an_optimizer_waits_for_no_step_of_its_own():
    class Prepared(Plain):
        def build(self):
            super().build()
            self.optimizer = Wrapper(self.optimizer)

    assert not TracedSizes(Prepared, Case(), capability=AMPERE).observed().is_waiting


def test_an_evaluation_that_records_a_graph_is_told():
    class Evaluates(Plain):
        kind = "eval"

        def step(self, batch):
            self.model(batch)

    class Lean(Evaluates):
        @torch.no_grad()
        def step(self, batch):
            self.model(batch)

    assert TracedSizes(Evaluates, Case(), capability=AMPERE).observed().records_graph
    assert not TracedSizes(Lean, Case(), capability=AMPERE).observed().records_graph
    assert not TracedSizes(Plain, Case(), capability=AMPERE).observed().records_graph


class AsksWhenBuilt(Plain):
    """Cannot be built on fake tensors, which shows only after the model was moved."""

    def build(self):
        super().build()
        if self.model[0].weight.std().item() > 100:
            self.model.half()


def test_what_was_built_before_it_failed_on_fake_tensors_is_not_counted():
    plain, asks = (trace(each, Case(), 512, capability=AMPERE) for each in (Plain, AsksWhenBuilt))
    assert asks.peak_bytes == plain.peak_bytes
    assert asks.record.storages[0].num_bytes > 0
    assert sum(each.kind == "parameters" for each in asks.record.storages) == 4


class ByDefault(Plain):
    def build(self):
        torch.set_default_device(self.device)
        self.model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def batch(self, size):
        return torch.randn(size, 64)


def test_what_is_made_on_the_default_device_is_on_the_gpu_and_the_default_is_of_the_trace_alone():
    plain, by_default = (trace(each, Case(), 512, capability=AMPERE) for each in (Plain, ByDefault))
    assert by_default.peak_bytes == plain.peak_bytes
    assert not by_default.is_unplaced
    assert torch.get_default_device() == torch.device("cpu")


class Averages(Plain):
    def build(self):
        super().build()
        self.average = copy.deepcopy(self.model)

    def step(self, batch):
        super().step(batch)
        for kept, new in zip(self.average.parameters(), self.model.parameters(), strict=True):
            kept.data.lerp_(new.data, 0.1)


def test_copies_of_modules_have_the_names_that_the_workload_gives_them():
    parameters = [each for each in trace(Averages, Case(), 8, capability=AMPERE).record.storages if each.num_bytes]
    names = {each.module for each in parameters if each.kind == "parameters"}
    assert names == {"model.0", "model.2", "average.0", "average.2"}
