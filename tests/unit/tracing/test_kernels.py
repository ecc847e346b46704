import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import brim
from brim.cases import Case
from brim.tracing import trace
from brim.tracing.kernels import workspace_bytes

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
