"""What a module keeps besides parameters and buffers comes back: in the same containers, down to the numbers."""

import threading
from collections import Counter, OrderedDict, defaultdict, deque

import numpy
import pytest
import torch
import torchmetrics
from torch import nn

from brim.probing.snapshot import restored


class Average:
    """A running average, as people write it."""

    def __init__(self):
        self.total, self.count, self.last = 0.0, 0, []

    def add(self, value):
        self.total, self.count = self.total + value, self.count + 1
        self.last.append(value)


class Keeping(nn.Module):
    """Keeps of its steps what modules keep."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.layer.calls = 3
        self.steps = 5
        self.outs = [torch.ones(2), {"loss": [1.0]}]
        self.by_name = {"train": {"seen": {1, 2}}, "order": OrderedDict(a=1)}
        self.counts, self.lists = Counter(cat=2), defaultdict(list, a=[1])
        self.recent = deque([1, 2], maxlen=2)
        self.total = torch.arange(3.0)
        self.confusion = numpy.eye(2)
        self.average = Average()
        self.pair = ([1], "fixed")
        self.metric = torchmetrics.MeanMetric()
        self.whole = torchmetrics.CatMetric()

    def step(self):
        self.steps += 1
        self.layer.calls += 1
        self.outs[0] += 1
        self.outs[1]["loss"].append(2.0)
        self.outs.append(torch.zeros(2))
        self.by_name["train"]["seen"] |= {3}
        self.by_name["order"]["b"] = 2
        self.counts["cat"] += 1
        self.lists["b"].append(2)
        self.recent.append(3)
        self.total += 1
        self.confusion += 1
        self.average.add(1.0)
        self.pair[0].append(2)
        self.metric.update(7.0)
        self.whole.update(torch.ones(2))
        self.new = "of the probe"


def state(module):
    """Return all that `step` changes, as values that can be compared."""
    return (
        module.steps, module.layer.calls, [module.outs[0].tolist(), *module.outs[1:]], module.by_name, module.counts,
        dict(module.lists), list(module.recent), module.total.tolist(), module.confusion.tolist(),
        vars(module.average), module.pair, float(module.metric.compute()), module.metric.update_count,
        module.whole.compute().tolist(), hasattr(module, "new"),
    )  # fmt: skip


def test_what_a_module_counted_and_collected_is_put_back():
    module, expected = Keeping(), Keeping()
    for each in (module, expected):
        each.metric.update(1.0)
        each.whole.update(torch.zeros(1))
    with restored():
        module.step()
        module.step()
    assert repr(state(module)) == repr(state(expected))


def test_containers_stay_the_same_objects():
    module = Keeping()
    module.shared = module.outs
    outs, loss, average, total = module.outs, module.outs[1]["loss"], module.average, module.total
    with restored():
        module.step()
        module.outs, module.average, module.total = [], Average(), torch.zeros(1)
    assert module.outs is module.shared is outs
    assert outs[1]["loss"] is loss
    assert loss == [1.0]
    assert module.average is average
    assert module.total is total
    assert module.recent.maxlen == 2


def test_layers_and_hooks_that_a_probe_made_are_gone():
    module = Keeping()
    layer = module.layer
    with restored():
        module.layer = nn.Linear(2, 2)
        module.extra = nn.Linear(2, 2)
        layer.register_forward_hook(lambda *_: pytest.fail("the hook of a probe"))
        nn.utils.parametrizations.weight_norm(layer)
    assert module.layer is layer
    assert not hasattr(module, "extra")
    assert module.layer(torch.ones(1, 2)).shape == (1, 2)
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]


def test_a_lazy_layer_is_lazy_again():
    module = nn.Sequential(nn.LazyLinear(3))
    with restored():
        module(torch.ones(2, 4))
    assert module(torch.ones(2, 7)).shape == (2, 3)


class Trainer:
    """Leads everywhere, and goes on by itself."""

    def __init__(self, module):
        self.module, self.lock, self.step = module, threading.Lock(), 0


def test_what_leads_everywhere_is_left_alone():
    module = Keeping()
    module.trainer, module.numbers = Trainer(module), iter(range(3))
    with restored():
        module.trainer.step = 1
        next(module.numbers)
    assert module.trainer.step == 1
    assert next(module.numbers) == 1


def test_tensors_that_cannot_be_written_to_and_results_of_graphs_are_no_hindrance():
    module = nn.Module()
    module.mask = torch.ones(1, 3).expand(4, 3)
    module.output = nn.Linear(2, 2)(torch.ones(1, 2))
    module.on_meta = torch.ones(2, device="meta")
    with torch.inference_mode():
        module.of_inference = torch.zeros(2)
    before = dict(vars(module))
    with restored(), torch.inference_mode():
        module.of_inference += 1
        module.mask = module.output = module.on_meta = None
    assert all(vars(module)[name] is value for name, value in before.items())
    assert module.of_inference.tolist() == [0.0, 0.0]
    module.output.sum().backward()


def test_a_tensor_that_a_probe_resized_has_its_shape_again():
    module = nn.Module()
    module.total = torch.zeros(2)
    with restored():
        module.total.data = torch.ones(3, dtype=torch.float64)
    assert torch.equal(module.total, torch.zeros(2))
