import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.profiler import ProfilerActivity, profile

import brim
from brim.cases import Case
from brim.tracing import trace
from brim.tracing.backing import Backing
from brim.tracing.onednn import workspace_bytes
from brim.workload import prepare

_LAYER = torch.ops.aten.mkldnn_rnn_layer.default
_LSTM_MODE = 2


def layer_arguments(num_steps, num_samples, num_inputs, num_hidden):
    gates = 4 * num_hidden
    state = torch.zeros(num_samples, num_hidden)
    weights = (torch.zeros(gates, num_inputs), torch.zeros(gates, num_hidden), torch.zeros(gates), torch.zeros(gates))
    inputs = torch.zeros(num_steps, num_samples, num_inputs)
    return inputs, *weights, state, state, False, [], _LSTM_MODE, num_hidden, 1, True, False, False, True


@settings(max_examples=30, deadline=None)
@given(
    num_steps=st.integers(1, 20),
    num_samples=st.integers(1, 9),
    num_inputs=st.sampled_from([8, 50, 128, 256, 300]),
    num_hidden=st.sampled_from([8, 20, 64, 65, 100, 256]),
)
def test_the_workspace_of_an_lstm_is_as_large_as_the_kernel_makes_it(num_steps, num_samples, num_inputs, num_hidden):
    arguments = layer_arguments(num_steps, num_samples, num_inputs, num_hidden)
    assert workspace_bytes(_LAYER, arguments) == _LAYER(*arguments)[-1].numel()


def test_an_lstm_keeps_no_workspace_without_gradients():
    with torch.no_grad():
        assert workspace_bytes(_LAYER, layer_arguments(3, 2, 8, 8)) == 0


class Lstm(brim.Workload):
    def build(self):
        self.model = nn.LSTM(64, 64, num_layers=2).to(self.device)

    def batch(self, size):
        return torch.zeros(10, size, 64, device=self.device)

    def step(self, batch):
        self.model(batch)[0].sum().backward()
        self.model.zero_grad()


def test_a_trace_holds_the_workspaces_of_an_lstm_until_the_backward_pass_on_the_cpu_alone():
    workspaces = 2 * workspace_bytes(_LAYER, layer_arguments(10, 4, 64, 64))
    assert trace(Lstm, Case(), 4).record.breakdown()["activations"] > workspaces
    assert trace(Lstm, Case(), 4, capability=(8, 0)).record.breakdown()["activations"] < workspaces


class Convolves(brim.Workload):
    layers = staticmethod(lambda: nn.Conv2d(32, 64, 3, padding=1))

    def build(self):
        self.model = nn.Sequential(nn.Conv2d(16, 32, 1), self.layers()).to(self.device)

    def batch(self, size):
        return torch.ones(size, 16, 32, 32, device=self.device)

    def step(self, batch):
        loss = self.model(batch).square().mean()
        if self.kind == "train":
            loss.backward()


class Strides(Convolves):
    layers = staticmethod(lambda: nn.Conv2d(32, 64, 3, stride=2, padding=1))


class Spreads(Convolves):
    layers = staticmethod(lambda: nn.ConvTranspose2d(32, 64, 4, stride=2, padding=1))


class SpreadsToOneChannel(Convolves):
    layers = staticmethod(lambda: nn.ConvTranspose2d(32, 1, 4, stride=2, padding=1))


class EndsInOneChannel(Convolves):
    layers = staticmethod(lambda: nn.Conv2d(32, 1, 3, padding=1))


class Grouped(Convolves):
    layers = staticmethod(lambda: nn.Conv2d(32, 32, 3, padding=1, groups=32))


class Evaluated(Convolves):
    kind = "eval"


class OfFewChannels(Convolves):
    """The gradient of its inputs is nobody's business."""

    num_channels = 3

    def build(self):
        self.model = nn.Conv2d(self.num_channels, 32, 3, padding=1).to(self.device)

    def batch(self, size):
        return torch.ones(size, self.num_channels, 32, 32, device=self.device)


class OfOneChannel(OfFewChannels):
    """Its images are in both layouts at once."""

    num_channels = 1


class Projects(brim.Workload):
    """As attention does: inputs are not contiguous, and gradients are summed."""

    def build(self):
        self.model = nn.Linear(64, 192).to(self.device)

    def batch(self, size):
        return torch.ones(size, 32, 64, device=self.device)

    def step(self, batch):
        inputs = batch.transpose(0, 1)
        for _ in range(2):
            query, key, value = (self.model(inputs).unflatten(-1, (3, 64)).select(-2, each) for each in range(3))
            inputs = query * key.sigmoid() + value.square()
        inputs.mean().backward()


class InBfloat16(Projects):
    def build(self):
        self.model = nn.Linear(64, 192, bias=False).to(self.device, torch.bfloat16)

    def batch(self, size):
        return torch.ones(32 * size, 64, device=self.device, dtype=torch.bfloat16)

    def step(self, batch):
        self.model(batch).relu().sum().backward()


class Noted(Backing):
    """Notes what is taken and given back."""

    def __init__(self):
        super().__init__()
        self.sizes, self.events = {}, []

    def take(self, num_bytes):
        address = super().take(num_bytes)
        self.sizes[address] = num_bytes
        self.events.append(num_bytes)
        return address

    def give_back(self, address):
        self.events.append(-self.sizes.get(address, 0))
        super().give_back(address)


CONVOLUTIONS = [
    *(Convolves, Strides, Spreads, SpreadsToOneChannel, EndsInOneChannel),
    *(Grouped, Evaluated, OfFewChannels, OfOneChannel),
]
# Smaller than any image in here, and larger than all else.
_LEAST_BYTES = 200 * 1024
_NUM_SAMPLES = 16


@pytest.mark.parametrize("workload_class", CONVOLUTIONS)
def test_a_convolution_asks_the_allocator_for_what_it_does_on_real_tensors_in_the_same_order(workload_class):
    assert _traced_events(workload_class, _NUM_SAMPLES) == _real_events(workload_class, _NUM_SAMPLES)


def test_projections_ask_the_allocator_for_what_they_do_on_real_tensors_in_the_same_order():
    assert _traced_events(Projects, 64) == _real_events(Projects, 64)


def test_projections_in_bfloat16_do_so_up_to_the_end_of_the_backward_pass():
    traced, real = _traced_events(InBfloat16, 64), _real_events(InBfloat16, 64)
    assert len(traced) == 5
    assert real[: len(traced)] == traced  # on some processors oneDNN lays the last operand out anew


def _traced_events(workload_class, num_samples):
    backing = Noted()
    trace(workload_class, Case(), num_samples, steps=1, backing=backing)
    return _without_end(backing.events)


def _real_events(workload_class, num_samples):
    workload = prepare(workload_class, Case(), torch.device("cpu"))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        workload.build()
        batch = workload.batch(num_samples)
        workload.step(batch)
    roots = recorded.profiler.kineto_results.experimental_event_tree()
    return _without_end([num_bytes for _, num_bytes in sorted(_allocations(roots))])


def _allocations(events):
    for event in events:
        if event.tag == torch._C._profiler._EventType.Allocation:
            yield event.start_time_ns, event.extra_fields.alloc_size
        yield from _allocations(event.children)


def _without_end(events):
    """Leave out what is small, and what is given back when all is over; in pages, as libraries add a few bytes."""
    large = [round(num_bytes / 4096) for num_bytes in events if abs(num_bytes) >= _LEAST_BYTES]
    last = max(number for number, num_pages in enumerate(large) if num_pages > 0)
    return large[: last + 1]
