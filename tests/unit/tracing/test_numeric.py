"""Python's own functions, and tensors, of numbers that a trace does not know."""

import math
import statistics
from math import exp

import pytest
import torch
from torch import nn

import brim
from brim.cases import Case
from brim.errors import TraceError
from brim.tracing import trace
from brim.tracing.numeric import numbers_kept_unknown
from brim.tracing.unknown import UnknownNumber
from brim.workload import load


class Branches(brim.Workload):
    """Takes one way or another by what it makes of its loss."""

    kind = "eval"

    def build(self):
        self.model = nn.Linear(8, 8).to(self.device)

    def batch(self, size):
        return torch.randn(size, 8, device=self.device)

    def step(self, batch):
        loss = self.model(batch).square().mean()
        if self.make(loss) < 0.5:
            self.kept = torch.zeros(len(batch), 8)
        else:
            self.kept = loss * 2


def _written(loss):
    losses = torch.zeros(3)
    losses[0] = loss.item()
    return losses.sum()


@pytest.mark.parametrize(
    "make",
    [
        lambda loss: math.exp(loss.item()),
        lambda loss: exp(loss.item()),
        lambda loss: math.fsum([loss.item(), 2.0]),
        lambda loss: statistics.fmean([loss.item(), 2.0]),
        lambda loss: torch.tensor(loss.item()),
        lambda loss: torch.tensor([loss.item(), 2.0]).max(),
        lambda loss: torch.as_tensor([[loss.item()]]),
        lambda loss: (torch.ones(3) * loss.item()).sum(),
        lambda loss: torch.ones(3).mul_(loss.item()).sum(),
        _written,
    ],
)
def test_what_is_made_of_an_unknown_number_is_unknown(make):
    class Made(Branches):
        pass

    Made.make = staticmethod(make)
    with pytest.raises(TraceError, match=r"if self\.make.*asks for a tensor's value"):
        trace(Made, Case(), 4)


def test_other_numbers_are_what_they_were():
    with numbers_kept_unknown(None):
        assert math.exp(0) == 1
        assert math.fsum(range(4)) == 6
        assert math.isclose(0.1 + 0.2, 0.3)
        assert type(math.log(UnknownNumber(), 2)) is UnknownNumber
    assert math.exp.__module__ == "math"
    assert not hasattr(math.exp, "__wrapped__")


def test_a_file_that_uses_float_as_a_type_keeps_it(tmp_path):
    path = tmp_path / "typed.py"
    path.write_text(
        "import brim, numpy, torch\n"
        "class Typed(brim.Workload):\n"
        "    kind = 'eval'\n"
        "    def build(self):\n"
        "        self.model = torch.nn.Linear(8, 8).to(self.device)\n"
        "    def batch(self, size):\n"
        "        assert numpy.zeros(3, dtype=float).dtype == numpy.float64\n"
        "        return torch.zeros(size, 8, device=self.device)\n"
        "    def step(self, batch):\n"
        "        self.model(batch)\n"
    )
    assert trace(load(f"{path}:Typed"), Case(), 4).num_operations
