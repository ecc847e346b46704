"""What is selected by values is counted whole, as if all of it were."""

import pytest
import torch
from tests.unit.tracing.test_trace import real_peak
from torch import nn

import brim
from brim.cases import Case
from brim.devices.catalog import Gpu
from brim.errors import TraceError
from brim.tracing import Prediction, trace
from brim.tracing.runtime import Runtime
from brim.tracing.sizes import TracedSizes


class Masks(brim.Workload):
    """Selects by a mask that happens to let everything through."""

    def build(self):
        self.model = nn.Linear(64, 64).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def batch(self, size):
        return torch.ones(size, 32, 64, device=self.device)

    def selected(self, values, mask):
        return values[mask]

    def step(self, batch):
        values = self.model(batch)
        self.selected(values, batch > 0).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Rows(Masks):
    def selected(self, values, mask):
        return values[mask[:, :, 0]]


class Numbers(Masks):
    """Selects by numbers, whose count is known."""

    def selected(self, values, mask):
        return values[:, torch.arange(32, device=values.device)]


class Selects(Masks):
    def selected(self, values, mask):
        return torch.masked_select(values, mask)


class Places(Masks):
    def selected(self, values, mask):
        return values[mask.nonzero(as_tuple=True)]


class Counts(Masks):
    """How often something is repeated has no bound."""

    def selected(self, values, mask):
        return values.flatten(1).repeat_interleave(mask.sum((1, 2)), dim=0)


def test_the_gradient_of_what_was_indexed_is_written_in_place():
    traced = trace(Numbers, Case(), 64)
    assert not traced.selects_all
    assert traced.peak_bytes == pytest.approx(real_peak(Numbers, 64), rel=0.001)


def test_masked_select_lists_the_places_as_cuda_does():
    # The CPU's kernel sums the mask up instead, in two numbers for each value where this has three.
    assert real_peak(Selects, 64) <= trace(Selects, Case(), 64).peak_bytes == trace(Places, Case(), 64).peak_bytes


@pytest.mark.parametrize("workload_class", [Masks, Rows, Places])
def test_all_is_counted_where_a_step_selects_by_values(workload_class):
    traced = trace(workload_class, Case(), 64)
    assert traced.selects_all
    assert traced.peak_bytes == pytest.approx(real_peak(workload_class, 64), rel=0.001)


def test_a_prediction_tells_that_it_counted_all():
    traced = TracedSizes(Rows, Case(), capability=(8, 6))
    gpu = Gpu(name="card", memory_bytes=2**30, capability=(8, 6))
    prediction = Prediction(traced, gpu=gpu, runtime=Runtime())
    assert prediction.largest > 0
    assert prediction.to_dict("w.py:Rows")["selects_all"] is True


def test_a_size_without_a_bound_is_refused():
    with pytest.raises(TraceError, match="makes a tensor whose size depends on values"):
        trace(Counts, Case(), 4)


def test_kinds_of_values_are_at_most_as_many_as_values():
    shapes = []

    class Kinds(Masks):
        def step(self, batch):
            values = self.model(batch)
            shapes.append([tuple(each.shape) for each in torch.unique(values, return_inverse=True)])
            shapes.append([tuple(each.shape) for each in torch.unique_consecutive(values, return_counts=True)])

    assert trace(Kinds, Case(), 2, steps=1, capability=(8, 6)).selects_all
    num_values = 2 * 32 * 64
    assert shapes == [[(num_values,), (2, 32, 64)], [(num_values,), (num_values,)]]


def test_counts_of_classes_are_as_many_as_are_asked_for():
    class Counts(brim.Workload):
        kind = "eval"
        num_classes = 21

        def build(self):
            pass

        def batch(self, size):
            return torch.ones(size, 64, dtype=torch.long, device=self.device)

        def step(self, batch):
            assert torch.bincount(batch.flatten(), minlength=self.num_classes).shape == (21,)

    class Unknown(Counts):
        def step(self, batch):
            torch.bincount(batch.flatten())

    class OneHot(Counts):
        def step(self, batch):
            torch.nn.functional.one_hot(batch)

    assert trace(Counts, Case(), 4, capability=(8, 6)).num_operations
    with pytest.raises(TraceError, match="Pass minlength to bincount"):
        trace(Unknown, Case(), 4, capability=(8, 6))
    with pytest.raises(TraceError, match="Pass num_classes to one_hot"):
        trace(OneHot, Case(), 4, capability=(8, 6))


def test_the_upper_bound_is_for_next_to_nothing_selected():
    class Experts(Masks):
        """Half of the memory is that of what was selected."""

        def step(self, batch):
            values = self.model(batch)
            for chosen in (batch[..., 0] > 0, batch[..., 1] > 0):
                self.model(values[chosen]).square().sum().backward(retain_graph=True)
            self.optimizer.step()
            self.optimizer.zero_grad()

    gpu = Gpu(name="small", memory_bytes=2**30, capability=(8, 6))
    traced = TracedSizes(Experts, Case(), capability=gpu.capability)
    prediction = Prediction(traced, gpu=gpu, runtime=Runtime())
    low, high = prediction.interval
    assert low <= prediction.largest
    assert high > 1.5 * prediction.largest
