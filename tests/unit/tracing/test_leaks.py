import pytest
import torch
from torch import nn

import brim
from brim.cases import Case
from brim.errors import TraceError
from brim.tracing.leaks import leak_of
from brim.tracing.sizes import TracedSizes


class Train(brim.Workload):
    """The weights outweigh what a few samples leave behind."""

    def build(self):
        self.model = nn.Sequential(nn.Linear(64, 1024), nn.Linear(1024, 16)).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.kept = []

    def batch(self, size):
        return torch.randn(size, 64, device=self.device)

    def step(self, batch):
        out = self.model(batch)
        self.keep(out)
        out.square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def keep(self, out):
        pass


class Eval(Train):
    kind = "eval"

    @torch.no_grad()
    def step(self, batch):
        self.keep(self.model(batch))


def keep_all(self, out):
    self.kept.append(out)


def keep_a_cache_of_one_size(self, out):
    self.kept.append(torch.zeros(2**16, device=self.device))


def keep_the_last(self, out):
    self.last = out


def keep_a_buffer_made_late(self, out):
    self.kept.append(None)
    if len(self.kept) == 2:
        self.buffer = torch.zeros_like(out)


def keep_a_mean(self, out):
    self.kept.append(out.detach().mean())


def keep_a_cycle(self, out):
    cycle = [out]
    cycle.append(cycle)


@pytest.mark.parametrize("kind", [Train, Eval])
@pytest.mark.parametrize("keep", [keep_all, keep_a_cache_of_one_size])
def test_what_is_kept_of_every_step_is_a_leak(kind, keep):
    workload = type("Leaks", (kind,), {"keep": keep})
    with pytest.raises(TraceError, match=r"Every step holds .* more than the one before at microbatch 4, made in"):
        TracedSizes(workload, Case(), capability=(8, 6))


@pytest.mark.parametrize("kind", [Train, Eval])
@pytest.mark.parametrize("keep", [keep_the_last, keep_a_buffer_made_late, keep_a_mean, keep_a_cycle])
def test_what_is_replaced_made_once_small_or_garbage_is_no_leak(kind, keep):
    workload = type("Keeps", (kind,), {"keep": keep})
    assert TracedSizes(workload, Case(), capability=(8, 6)).num_operations > 0


def test_an_eval_that_keeps_its_last_output_is_traced_beside_it():
    plain = TracedSizes(Eval, Case(), capability=(8, 6))
    keeping = TracedSizes(type("Keeps", (Eval,), {"keep": keep_the_last}), Case(), capability=(8, 6))
    assert len(plain.record(4).step_starts) == 1
    assert len(keeping.record(4).step_starts) == 2


def test_a_step_that_runs_nothing_is_refused():
    class Nothing(Train):
        def step(self, batch):
            pass

    with pytest.raises(TraceError, match="the step runs no torch operation"):
        TracedSizes(Nothing, Case(), capability=(8, 6))


def test_a_step_that_keeps_its_batch_is_told_so():
    class KeepsInputs(Train):
        def step(self, batch):
            super().step(batch)
            self.kept.append(batch)

    class KeepsTheLast(Train):
        def step(self, batch):
            super().step(batch)
            self.last = batch

    assert TracedSizes(KeepsInputs, Case(), capability=(8, 6)).observed().keeps_batch
    assert not TracedSizes(KeepsTheLast, Case(), capability=(8, 6)).observed().keeps_batch
    assert not TracedSizes(Train, Case(), capability=(8, 6)).observed().keeps_batch


@pytest.mark.parametrize("kind", [Train, Eval])
def test_a_leak_on_the_cpu_is_told_to_a_search_and_nothing_else_is(kind):
    leaks, keeps = (type("Keeps", (kind,), {"keep": keep}) for keep in (keep_all, keep_the_last))
    assert leak_of(leaks, Case(), (4, 8)).startswith("Every step holds")
    assert leak_of(keeps, Case(), (4, 8)) is None
