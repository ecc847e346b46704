"""Steps that ask for values: what a trace answers, and what it refuses."""

import math

import numpy
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
    with pytest.raises(TraceError, match=r"a tensor's value.*which a trace does not have") as refused:
        trace(workload_class, Case(), 4)
    assert line in str(refused.value)


def test_an_unknown_number_stays_one():
    numbers = [UnknownNumber() + 1, 2 - UnknownNumber(), -UnknownNumber(), sum([UnknownNumber()], 0.0)]
    assert all(type(number) is UnknownNumber for number in numbers)
    assert {f"{number:>5.1f}" for number in numbers} == {"  nan"}


class Counts(Logs):
    """Keeps whole numbers, formats tensors, and scales by numbers, as people do."""

    def follow(self, loss):
        correct = (loss.expand(8) > 0).sum().item()
        self.total += correct
        self.history.append(f"{correct / 8:.1%} of {correct:d}, loss {loss.detach():.3f}")
        self.history.append(float(loss) + float(correct) + float("1.5") + float(2))
        self.history.append(100 * correct // 8 + int((loss.expand(8) > 0).sum()) / 8 + math.exp(min(loss.item(), 20)))
        self.best = min(self.total, max(loss.item(), 0.0))
        scaled = correct * loss.detach() / max(1, 2)
        assert scaled.square().shape == ()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, error_if_nonfinite=True)


class Schedules(Logs):
    def build(self):
        super().build()
        self.schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer)

    def follow(self, loss):
        self.schedule.step(loss)
        self.schedule.step(loss.item())


@pytest.mark.parametrize("workload_class", [Counts, Schedules])
def test_whole_numbers_floats_and_learning_rates_have_no_say_in_memory(workload_class):
    assert trace(workload_class, Case(), 4).held_bytes == trace(Silent, Case(), 4).held_bytes


class Hides(Logs):
    def follow(self, loss):
        try:
            self.best = self.total if self.total < loss.item() else loss.item()
        except Exception as error:  # noqa: BLE001  as people write
            print("skipped", error)


def test_a_refusal_that_the_workload_takes_no_notice_of_is_told_all_the_same():
    with pytest.raises(TraceError, match=r"self\.best = self\.total if.*asks for a tensor's value"):
        trace(Hides, Case(), 4)


def test_of_a_librarys_line_the_one_that_called_it_is_told():
    class Averages(Logs):
        def follow(self, loss):
            numpy.argmin([loss.item()])

    with pytest.raises(TraceError, match=r"called by test_unknown\.py:\d+ \(numpy\.argmin\(\[loss\.item\(\)\]\)\)"):
        trace(Averages, Case(), 4)


def test_an_attempt_to_build_on_fake_tensors_that_was_refused_leaves_nothing_behind():
    class Plain(Logs):
        def build(self):
            super().build()
            self.model = nn.Linear(8, 8).to(self.device)
            self.optimizer = torch.optim.AdamW(self.model.parameters())

    class Asks(Plain):
        def build(self):
            large = nn.Linear(1024, 1024)
            self.is_positive = bool(large.weight.sum() > 0)
            super().build()

    assert trace(Asks, Case(), 4).held_bytes == trace(Plain, Case(), 4).held_bytes
