"""Branches on values that may go either way: the one that takes most is answered for, and told."""

from itertools import count

import pytest
import torch
from torch import nn

import brim
from brim.cases import Case
from brim.devices.catalog import Gpu
from brim.errors import TraceError
from brim.tracing import branches, predict
from brim.tracing.branches import MOST_BRANCHES, OpenBranchError, each_way
from brim.tracing.traces import trace

SMALL = Gpu(name="small", memory_bytes=2 * 2**30, capability=(8, 6))
AMPERE = (8, 6)


class Train(brim.Workload):
    def build(self):
        self.model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters())
        self.best, self.patience = float("inf"), 0

    def batch(self, size):
        return torch.randn(size, 64, device=self.device)

    def step(self, batch):
        loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.after(loss)

    def loss(self, batch):
        return self.model(batch).square().mean()

    def after(self, loss):
        pass


class AlwaysMore(Train):
    def loss(self, batch):
        return Train.loss(self, batch) + self.model(batch).abs().mean()


class KeepsCopies(Train):
    def after(self, loss):
        self.copies = [weight.detach().clone() for weight in self.model.parameters()]


class CountsPatience(Train):
    def after(self, loss):
        if loss.item() < self.best:
            self.best, self.patience = loss.item(), 0
        else:
            self.patience += 1


class MayBeMore(Train):
    def loss(self, batch):
        loss = super().loss(batch)
        if loss > 1:
            loss = loss + self.model(batch).abs().mean()
        return loss


class MayBeLess(Train):
    def loss(self, batch):
        loss = super().loss(batch)
        if loss.item() > 1:
            return loss
        return loss + self.model(batch).abs().mean()


class Skips(Train):
    def loss(self, batch):
        loss = super().loss(batch)
        for _ in range(1):
            if not loss.item():
                continue
            loss = loss + self.model(batch).abs().mean()
        return loss


class KeepsTheBest(Train):
    def after(self, loss):
        if loss.item() < self.best:
            self.best = loss.item()
            self.copies = [weight.detach().clone() for weight in self.model.parameters()]


class HasAFlag(Train):
    def loss(self, batch):
        loss, is_done, num_passes = 0, False, 0
        while not is_done and num_passes < 2:
            part = super().loss(batch) if num_passes == 0 else self.model(batch).abs().mean()
            loss, num_passes = loss + part, num_passes + 1
            is_done = part.item() < 0.1
        return loss


class FailsElse(Train):
    def loss(self, batch):
        return super().loss(batch) if batch.sum() > 1 else None


@pytest.mark.parametrize(
    ("workload", "same_as", "is_told"),
    [
        (FailsElse, Train, False),
        (CountsPatience, Train, False),
        (MayBeMore, AlwaysMore, True),
        (MayBeLess, AlwaysMore, True),
        (Skips, AlwaysMore, True),
        (KeepsTheBest, KeepsCopies, True),
    ],
)
def test_the_way_that_takes_most_is_answered_for(workload, same_as, is_told):
    answer, expected = predict(workload, gpu=SMALL), predict(same_as, gpu=SMALL)
    assert answer.largest == expected.largest
    assert answer.peak(answer.largest) == expected.peak(answer.largest)
    assert bool(answer.observed.branches) == is_told
    assert all(line.startswith("test_branches.py:") and "(if " in line for line in answer.observed.branches)


def test_a_flag_that_ends_a_loop_early_may_stay_false():
    assert predict(HasAFlag, gpu=SMALL).largest == predict(AlwaysMore, gpu=SMALL).largest


class TakesMuch(Train):
    def loss(self, batch):
        return Train.loss(self, batch) + torch.ones(2**26, device=self.device).mean()


class Either(Train):
    def loss(self, batch):
        return TakesMuch.loss(self, batch) if batch.sum() > 1 else AlwaysMore.loss(self, batch)


def test_which_way_takes_most_may_depend_on_the_size():
    for memory_mib, worst in ((600, TakesMuch), (2048, AlwaysMore)):
        gpu = Gpu(name="small", memory_bytes=memory_mib * 2**20, capability=(8, 6))
        ways = {way: predict(way, gpu=gpu).largest for way in (TakesMuch, AlwaysMore)}
        assert min(ways, key=ways.get) is worst
        assert predict(Either, gpu=gpu).largest == ways[worst]


class NeverEnds(Train):
    def loss(self, batch):
        scale = batch.abs().max()
        while scale.item() > 1 or scale.item() < -1:
            scale = scale / 2
        return super().loss(batch) * scale


class NeverIsDone(Train):
    def loss(self, batch):
        scale, is_done = batch.abs().max(), False
        while not is_done:
            scale = scale / 2
            is_done = scale.item() < 1
        return super().loss(batch) * scale


class Counts(Train):
    def loss(self, batch):
        loss = super().loss(batch)
        return loss if loss > 1 else loss * len(torch.zeros(int(loss)))


class AsksMuch(Train):
    def loss(self, batch):
        loss = super().loss(batch)
        asked = bool(loss > 0), bool(loss > 1), bool(loss > 2), bool(loss > 3)
        return loss + sum(asked)


@pytest.mark.parametrize("workload", [NeverEnds, NeverIsDone, Counts, AsksMuch])
def test_what_cannot_go_both_ways_is_refused_with_its_line(workload, monkeypatch):
    monkeypatch.setattr(branches, "MOST_TAKEN_EACH", 0)
    monkeypatch.setattr(branches, "MOST_ANSWERS", 100)
    with pytest.raises(TraceError, match=r"test_branches.py:\d+ .*tensor's value"):
        predict(workload, gpu=SMALL)


def test_a_model_is_built_with_the_values_that_it_asks_for():
    class Builds(Train):
        def build(self):
            super().build()
            if torch.ones(2, device=self.device).sum() > 1:
                self.model[0] = nn.Linear(64, 256, bias=False).to(self.device)

    traced = trace(Builds, Case(), 4, capability=AMPERE)
    assert traced.branches == ()
    assert 256 * 4 not in [each.num_bytes for each in traced.record.storages if each.kind == "parameters"][:1]


class FillsThenNot(Train):
    """Holds a copy from a step that was better while a step that was not runs the model again."""

    is_better = staticmethod(lambda loss, num_steps: loss.item() < 1)

    def step(self, batch):
        self.num_steps = getattr(self, "num_steps", 0) + 1
        super().step(batch)

    def loss(self, batch):
        loss = super().loss(batch)
        if self.is_better(loss, self.num_steps):
            self.copies = torch.zeros(2**22, device=self.device)
            return loss
        return loss + self.model(batch).abs().mean()


class FillsFirst(FillsThenNot):
    is_better = staticmethod(lambda loss, num_steps: num_steps == 1)


class KeepsWhole(Train):
    """Makes something large in the first part of its batch, and keeps the graphs of all others."""

    is_large = staticmethod(lambda loss, number: loss.item() > 1)

    def loss(self, batch):
        kept, total = None, 0.0
        for number, part in enumerate(batch.chunk(4)):
            loss = super().loss(part)
            if self.is_large(loss, number):
                kept = torch.zeros(len(batch), 512, device=self.device) if kept is None else kept
                loss = loss.detach()
            total = total + loss
        return total


class KeepsFirst(KeepsWhole):
    is_large = staticmethod(lambda loss, number: number == 0)


@pytest.mark.parametrize(("workload", "worst"), [(FillsThenNot, FillsFirst), (KeepsWhole, KeepsFirst)])
def test_one_way_may_hold_what_the_other_made_before(workload, worst):
    answer, expected = predict(workload, gpu=SMALL), predict(worst, gpu=SMALL)
    assert answer.largest == expected.largest
    assert answer.observed.branches
    assert answer.observed.other_kind is None


def test_at_every_size_the_way_counts_that_takes_most_there():
    answer = predict(Either, gpu=SMALL)
    assert answer.peak(2) == predict(TakesMuch, gpu=SMALL).peak(2)
    assert answer.peak(2**19) == predict(AlwaysMore, gpu=SMALL).peak(2**19)
    assert answer.breakdown(2)["temporary"] > 2**27
    assert answer.shown_sizes()[0] == 1


def test_a_way_that_keeps_memory_is_told_as_a_leak():
    class Collects(Train):
        def loss(self, batch):
            self.kept = getattr(self, "kept", [])
            out = self.model(batch)
            if out.mean() > 1:
                self.kept.append(out.detach())
            return out.square().mean()

    with pytest.raises(TraceError, match="Every step holds"):
        predict(Collects, gpu=SMALL)


def test_a_branch_in_a_function_of_python_is_told_with_the_line_that_calls_it():
    class Takes(Train):
        def loss(self, batch):
            loss = super().loss(batch)
            _, times = max([(loss.item(), 1), (2.0, 8)])
            return loss + sum(self.model(batch).abs().mean() for _ in range(times))

    (line,) = predict(Takes, gpu=SMALL).observed.branches
    assert line.startswith("test_branches.py:")


def test_every_way_is_run_once_and_no_more_than_may_be():
    def run(ways, num_branches):
        asked.append(ways)
        if len(ways) < num_branches:
            raise OpenBranchError("one too many")
        return ways[:num_branches]

    for num_branches in range(MOST_BRANCHES + 1):
        asked = []
        results = each_way(lambda ways, wanted=num_branches: run(ways, wanted), memory_of=lambda ways: ways)
        assert len(results) == 2**num_branches + 4 * (num_branches > 0)
        assert len(set(asked)) == len(asked)
    with pytest.raises(TraceError, match="one too many"):
        each_way(lambda ways: run(ways, MOST_BRANCHES + 1), memory_of=lambda ways: ways)


def test_ways_that_need_the_same_are_one():
    def run(ways):
        if not ways:
            raise OpenBranchError("open")
        return ways

    assert len(each_way(run, memory_of=lambda ways: 0)) == 1


def test_what_fails_each_way_is_told_as_a_failure():
    class Fails(Train):
        def loss(self, batch):
            return None if batch.sum() > 1 else batch.sum()

    with pytest.raises(TraceError, match=r"step fails: test_branches.py:\d+ \(loss.backward\(\)\) raises"):
        predict(Fails, gpu=SMALL)


def test_what_fails_without_a_branch_is_raised_as_it_is():
    failures = (TraceError(f"failure {number}") for number in count())
    with pytest.raises(TraceError, match="failure 0"):
        each_way(lambda ways: (_ for _ in ()).throw(next(failures)), memory_of=lambda result: 0)
