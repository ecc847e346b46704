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
        lambda array: numpy.unique(array),
        lambda array: numpy.where(array > 0)[0],
        lambda array: (array > 0).nonzero(),
        lambda array: array[array > 0],
        lambda array: numpy.bincount(numpy.asarray(array)),
        lambda array: numpy.repeat([1, 2, 3, 4, 5, 6], array),
        lambda array: torch.zeros(int((numpy.linalg.svd(array.reshape(2, 3) / 2)[1] > 1).sum())),
        lambda array: torch.zeros(int(torch.from_numpy(array).max())),
        lambda array: set(array.tolist()),
        lambda array: 3 in array,
        lambda array: 1 if array.item(0) > 1 else 2,
    ],
)
def test_whoever_asks_for_a_value_is_refused(ask):
    with pytest.raises(TraceError, match="a tensor's value"):
        run(lambda workload, predicted: ask(predicted.cpu().numpy()))


@pytest.mark.parametrize(
    "reckon",
    [
        lambda loss: numpy.mean([loss, loss]),
        lambda loss: numpy.array([[loss, 2.0], [1.0, loss]]).mean(0),
        lambda loss: numpy.exp(loss),
        lambda loss: numpy.ones(3) * loss,
        lambda loss: numpy.quantile([loss, loss], q=0.5),
        lambda loss: round(numpy.mean([loss]), 3),
        lambda loss: numpy.concatenate([[loss], [loss]]),
    ],
)
def test_what_numpy_makes_of_an_unknown_number_is_unknown(reckon):
    def ask(workload, predicted):
        if numpy.sum(reckon(predicted.sum().item())) > 1:
            torch.zeros(1)

    def show(workload, predicted):
        assert "0" not in str(reckon(predicted.sum().item())).partition("shape")[0]

    run(show)
    with pytest.raises(TraceError, match="a tensor's value"):
        run(ask)


def test_an_unknown_number_is_finite_for_numpy():
    def use(workload, predicted):
        loss = predicted.sum().item()
        assert numpy.isfinite(loss)
        assert not numpy.isnan(loss)
        assert numpy.mean([1.0, 3.0]) == 2

    run(use)


def test_what_numpy_asks_for_itself_is_no_question_of_the_step():
    def reckon(workload, predicted):
        array = predicted.cpu().numpy()
        ordered = numpy.argsort(array)[-2:]
        assert f"{numpy.percentile(array, 50)} {numpy.median(array):.1f}" == "nan nan"
        assert numpy.repeat(array, 2).shape == array.repeat(2).shape == (12,)
        assert numpy.where(array > 0, array, 1).shape == (6,)
        assert torch.from_numpy(ordered).shape == (2,)

    assert run(reckon).num_operations > 0


def test_a_mask_without_values_takes_all_of_a_known_array():
    def take(workload, predicted):
        assert numpy.arange(6)[predicted.cpu().numpy() > 0].shape == (6,)

    assert run(take).num_operations > 0


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
