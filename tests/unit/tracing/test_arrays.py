"""Arrays and lists of a trace's tensors: kept and reckoned with, but not asked."""

import numpy
import pytest
import torch
from torch import nn

import brim
from brim.cases import Case
from brim.errors import TraceError
from brim.tracing import trace


class Evaluates(brim.Workload):
    kind = "eval"

    def build(self):
        self.model = nn.Linear(16, 4).to(self.device)
        self.kept = []

    def batch(self, size):
        return torch.ones(size, 16, device=self.device)

    def step(self, batch):
        with torch.no_grad():
            self.use(self.model(batch).argmax(1))


def run(use, capability=(8, 0)):
    class Uses(Evaluates):
        pass

    Uses.use = use
    return trace(Uses, Case(), 6, capability=capability)


def collect(workload, predicted):
    array = predicted.cpu().numpy()
    workload.kept += [array, predicted.tolist(), numpy.asarray(predicted.cpu())]
    assert numpy.concatenate([array, array]).shape == (12,)
    assert len(list(array)) == len(predicted.tolist()) == 6
    assert f"{(array == array[::-1]).mean():.3f}" == "nan"


def test_predictions_that_are_collected_on_the_host_cost_the_gpu_nothing():
    def nothing(workload, predicted):
        pass

    assert run(collect).peak_bytes == run(nothing).peak_bytes


def test_they_are_collected_on_the_cpu_too():
    assert run(collect, capability=None).num_operations > 0


@pytest.mark.parametrize(
    "ask",
    [
        lambda array: array.all() or None,
        lambda array: [0, 1][array[0]],
        lambda array: 1 if array.item(0) > 1 else 2,
    ],
)
def test_whoever_asks_for_a_value_is_refused(ask):
    with pytest.raises(TraceError, match="asks for a tensor's value"):
        run(lambda workload, predicted: ask(predicted.cpu().numpy()))


def test_values_that_are_known_are_given():
    def use(workload, predicted):
        assert torch.tensor([3, 5]).numpy().tolist() == torch.tensor([3, 5]).tolist() == [3, 5]

    run(use)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda workload, predicted: predicted.numpy(), "can't convert cuda:0 device type tensor to numpy"),
        (lambda workload, predicted: workload.model.weight.cpu().numpy(), "requires grad"),
    ],
)
def test_what_torch_refuses_is_refused(make, said):
    def use(workload, predicted):
        with torch.enable_grad():
            make(workload, predicted)

    with pytest.raises(TraceError, match=said):
        run(use)
