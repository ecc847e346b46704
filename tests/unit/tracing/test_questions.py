"""Tests of values whose worst case is plain: loops go on, checks hold. All others may go either way."""

import pytest
import torch
from torch import nn

import brim
from brim.cases import Case
from brim.errors import TraceError
from brim.tracing import trace

AMPERE = (8, 6)
MOST_TOKENS = 12


class Decodes(brim.Workload):
    """A loop that people write: it ends when all texts have."""

    kind = "generate"
    num_tokens = 0

    def build(self):
        self.model = nn.Embedding(64, 64).to(self.device)

    def batch(self, size):
        return torch.zeros(size, 1, dtype=torch.long, device=self.device)

    def token(self, texts):
        type(self).num_tokens += 1
        return self.model(texts[:, -1]).argmax(-1)

    def decode(self, texts):
        for _ in range(MOST_TOKENS):
            token = self.token(texts)
            texts = torch.cat([texts, token[:, None]], 1)
            if (token == 2).all():
                break

    @torch.no_grad()
    def step(self, batch):
        type(self).num_tokens = 0
        self.decode(batch)


class Item(Decodes):
    def decode(self, texts):
        for _ in range(MOST_TOKENS):
            if self.token(texts)[0].item() == 2 or self.token(texts)[0].item() > 3:
                return


class Alive(Decodes):
    def decode(self, texts):
        alive = torch.ones(len(texts), dtype=torch.bool, device=self.device)
        num_tokens = 0
        while alive.any() and num_tokens < MOST_TOKENS:
            alive &= self.token(texts) != 2
            num_tokens += 1
            if not alive.any():
                break
            if alive.sum() == 0:
                break


class Both(Decodes):
    def decode(self, texts):
        num_tokens = 0
        while True:
            num_tokens += 1
            if (self.token(texts) == 2).all() or num_tokens == MOST_TOKENS:
                break


class Usual(Decodes):
    def decode(self, texts):
        done = torch.zeros(len(texts), dtype=torch.bool, device=self.device)
        while texts.shape[1] <= MOST_TOKENS and not done.all():
            token = self.token(texts)
            done |= token == 2
            texts = torch.cat([texts, token[:, None]], 1)


class Flag(Decodes):
    def decode(self, texts):
        stop, num_tokens = False, 0
        while not stop and num_tokens < MOST_TOKENS:
            num_tokens += 1
            if (self.token(texts) == 2).all():
                stop = True


class Else(Decodes):
    def decode(self, texts):
        for _ in range(MOST_TOKENS):
            token = self.token(texts)
            if (token != 2).any():
                texts = torch.cat([texts, token[:, None]], 1)
            else:
                break


@pytest.mark.parametrize("workload", [Decodes, Alive, Both, Usual, Flag, Else])
def test_a_loop_that_may_stop_early_goes_on_to_its_longest(workload):
    trace(workload, Case(), 4, capability=AMPERE)
    assert workload.num_tokens == MOST_TOKENS


def test_so_does_one_that_asks_for_the_number_of_a_token():
    trace(Item, Case(), 4, capability=AMPERE)
    assert Item.num_tokens == 2 * MOST_TOKENS


class OnlyWay(Decodes):
    def decode(self, texts):
        while True:
            if (self.token(texts) == 2).all():
                break


class OnlyTest(Decodes):
    def decode(self, texts):
        token = self.token(texts)
        while not (token == 2).all():
            token = self.token(texts)


@pytest.mark.parametrize("workload", [OnlyWay, OnlyTest])
def test_a_loop_that_nothing_else_ends_is_refused(workload):
    with pytest.raises(TraceError, match=r"is the only way out of its loop.*End the loop at the longest length"):
        trace(workload, Case(), 4, capability=AMPERE)
    assert workload.num_tokens <= 1


def test_a_loop_that_does_not_end_for_long_is_refused(monkeypatch):
    monkeypatch.setattr("brim.tracing.questions.MOST_ANSWERS", 50)

    class Long(Decodes):
        def decode(self, texts):
            for _ in range(100):
                if (texts == 2).all():
                    break

    with pytest.raises(TraceError, match="is the only way out of its loop"):
        trace(Long, Case(), 4, capability=AMPERE)


def test_checks_hold():
    class Checks(Decodes):
        def decode(self, texts):
            values = self.model(texts)
            assert (values > 0).all(), "negative"
            assert not (values < 0).any()
            assert values.abs().max().item() < 1
            assert (values > 0).all().item()
            assert torch.allclose(values, values)
            assert torch.equal(values, values)
            assert 1 not in values
            if (values < 0).any() and not (values > 0).all():
                raise ValueError("negative")

    assert trace(Checks, Case(), 4, capability=AMPERE).num_operations > 4


def test_a_branch_that_only_prints_or_keeps_what_it_compares_is_taken(capsys):
    class Best(Decodes):
        best = float("inf")

        def decode(self, texts):
            loss = self.model(texts).mean().item()
            if loss < self.best:
                self.best = loss
            if self.model(texts).mean() > 100:
                print("large")

    assert trace(Best, Case(), 4, capability=AMPERE).num_operations > 4
    assert "large" in capsys.readouterr().err


class KeepsAnother(Decodes):
    def decode(self, texts):
        if texts.sum() > 3:
            self.best = texts * 2


class Tells(Decodes):
    def decode(self, texts):
        if texts.sum() > 3:
            print("more")
        else:
            texts = texts * 2


class Chooses(Decodes):
    def decode(self, texts):
        return texts * 2 if texts.any() else texts


class Branches(Decodes):
    def decode(self, texts):
        if texts.any():
            texts = texts * 2


class Remembers(Decodes):
    def decode(self, texts):
        self.has_any = bool(texts.any())


class Skips(Decodes):
    def decode(self, texts):
        for _ in range(MOST_TOKENS):
            if (self.token(texts) != 2).any():
                continue
            break


class WorksBefore(Decodes):
    def decode(self, texts):
        for _ in range(MOST_TOKENS):
            if (self.token(texts) == 2).all():
                texts = texts.repeat(1, 100)
                break


class Inverts(Decodes):
    def decode(self, texts):
        for _ in range(MOST_TOKENS):
            if (self.token(texts) != 2).any().item() == 0:
                break


class AsksEach(Decodes):
    def decode(self, texts):
        num_tokens = 0
        while num_tokens < MOST_TOKENS and any(not done for done in self.token(texts) == 2):
            num_tokens += 1


class SetsWidth(Decodes):
    def decode(self, texts):
        width = 1
        for _ in range(MOST_TOKENS):
            if self.token(texts).any():
                width = 50
        texts.repeat(1, width)


class TriesSizes(Decodes):
    def decode(self, texts):
        for width in (50, 10, 1):
            chosen = width
            if self.token(texts).any():
                break
        texts.repeat(1, chosen)


class ReturnsSomething(Decodes):
    def decode(self, texts):
        for _ in range(MOST_TOKENS):
            if self.token(texts).any():
                return texts
        return None


class Catches(Decodes):
    def decode(self, texts):
        try:
            if self.token(texts).any():
                raise ValueError("some")
        except ValueError:
            texts.repeat(1, 50)


@pytest.mark.parametrize(
    "workload",
    [
        *(KeepsAnother, Tells, Chooses, Branches, Remembers, Skips, WorksBefore),
        *(Inverts, AsksEach, SetsWidth, TriesSizes, ReturnsSomething, Catches),
    ],
)
def test_other_tests_are_refused_where_nobody_says_which_way_they_go(workload):
    with pytest.raises(TraceError, match="asks for a tensor's value"):
        trace(workload, Case(), 4, capability=AMPERE)
