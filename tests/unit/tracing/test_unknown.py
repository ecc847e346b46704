"""Steps that ask for values: what a trace answers, and what it refuses."""

import math

import pytest
import torch
from torch import nn

import brim
from brim.cases import Case
from brim.errors import TraceError
from brim.tracing import trace
from brim.tracing.unknown import UnknownNumber


class Logs(brim.Workload):
    """Trains, and keeps and prints its loss as people do."""

    def build(self):
        self.model = nn.Linear(8, 8).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.total, self.history = 0.0, []

    def batch(self, size):
        return torch.randn(size, 8, device=self.device)

    def step(self, batch):
        loss = self.model(batch).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.follow(loss)

    def follow(self, loss):
        self.total += loss.item() / 2
        self.history.append(round(loss.item(), 3))
        print(f"loss {loss.item():.3f}, mean {self.total}")


class Silent(Logs):
    def follow(self, loss):
        pass


class Guards(Logs):
    def follow(self, loss):
        if torch.isnan(loss) or torch.isinf(loss).any() or not loss.isfinite().all() or not math.isfinite(loss.item()):
            raise RuntimeError("diverged")


class KeepsTheBest(Logs):
    def follow(self, loss):
        if loss.item() < 1:
            self.best = loss.detach().clone()


class Sizes(Logs):
    def follow(self, loss):
        torch.zeros(int(loss.item()))


@pytest.mark.parametrize("workload_class", [Logs, Guards])
def test_a_step_that_only_logs_or_guards_takes_the_memory_of_one_that_does_not(workload_class, capsys):
    assert trace(workload_class, Case(), 4).held_bytes == trace(Silent, Case(), 4).held_bytes
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("workload_class", "line"), [(KeepsTheBest, "if loss.item() < 1:"), (Sizes, "torch.zeros(")])
def test_a_step_whose_way_depends_on_a_value_is_refused_with_the_line(workload_class, line):
    with pytest.raises(TraceError) as refused:
        trace(workload_class, Case(), 4)
    assert line in str(refused.value)
    assert "asks for a tensor's value" in str(refused.value)


def test_an_unknown_number_stays_one():
    numbers = [UnknownNumber() + 1, 2 - UnknownNumber(), -UnknownNumber(), sum([UnknownNumber()], 0.0)]
    assert all(type(number) is UnknownNumber for number in numbers)
    assert {f"{number:>5.1f}" for number in numbers} == {"  nan"}
