"""Recurrent layers in a trace for CUDA: shapes as torch has them, memory as cuDNN takes it."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import brim
from brim.cases import Case
from brim.errors import TraceError
from brim.tracing import trace
from brim.tracing.record import Phase

AMPERE = (8, 6)
FLOAT32_BYTES = 4


class Recurrent(brim.Workload):
    """The nets of pytorch issue 2895, of which cuDNN's sizes are known."""

    layer = nn.LSTM

    def build(self):
        self.model = self.layer(123, 320, num_layers=4).to(self.device)

    def batch(self, size):
        return torch.zeros(1000, size, 123, device=self.device)

    def step(self, batch):
        self.model(batch)[0].mean().backward()
        self.model.zero_grad()


def _storages(workload, microbatch=25, phase=Phase.FORWARD):
    record = trace(workload, Case(), microbatch, capability=AMPERE).record
    return [storage.num_bytes for storage in record.storages if storage.phase is phase]


@pytest.mark.parametrize(("layer_class", "reserve"), [(nn.LSTM, 736_000_000), (nn.GRU, 864_000_000)])
def test_what_is_kept_is_what_cudnn_asked_for(layer_class, reserve):
    class Measured(Recurrent):
        layer = layer_class

    assert _storages(Measured).count(reserve) == 2  # in each of two steps


def test_the_weights_lie_in_one_buffer_and_so_do_their_gradients():
    class Trained(Recurrent):
        def step(self, batch):
            self.model(batch)[0].mean().backward()
            torch.optim.SGD(self.model.parameters()).step()
            self.model.zero_grad()

    record = trace(Trained, Case(), 25, capability=AMPERE).record
    num_weights = sum(weight.numel() for weight in nn.LSTM(123, 320, num_layers=4).parameters())
    assert record.breakdown()["parameters"] == num_weights * FLOAT32_BYTES
    assert [each.num_bytes for each in record.storages if each.kind == "gradients"] == [num_weights * FLOAT32_BYTES] * 2


def test_under_autocast_half_as_much_is_kept():
    class Half(Recurrent):
        def step(self, batch):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = self.model(batch)[0].mean()
            loss.backward()
            self.model.zero_grad()

    assert _storages(Half).count(736_000_000 // 2) == 2


def test_evaluation_keeps_nothing():
    class Evaluated(Recurrent):
        kind = "eval"

        def step(self, batch):
            self.model.eval()
            with torch.no_grad():
                self.model(batch)

    assert max(_storages(Evaluated)) == 1000 * 25 * 320 * FLOAT32_BYTES  # its outputs


def test_a_backward_pass_in_evaluation_mode_is_refused_as_cudnn_does():
    class Evaluated(Recurrent):
        def step(self, batch):
            self.model.eval()
            super().step(batch)

    with pytest.raises(TraceError, match="can only be called in training mode"):
        trace(Evaluated, Case(), 2, capability=AMPERE)


def test_what_cudnn_does_not_take_is_run_step_by_step():
    class Bfloat16(Recurrent):
        def build(self):
            self.model = nn.GRU(8, 8).to(self.device, torch.bfloat16)

        def batch(self, size):
            return torch.zeros(50, size, 8, device=self.device, dtype=torch.bfloat16)

    assert trace(Bfloat16, Case(), 2, capability=AMPERE).num_operations > 2 * 50


@pytest.mark.parametrize("layer_class", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    "settings",
    [{}, {"batch_first": True}, {"bidirectional": True, "num_layers": 2, "dropout": 0.1}, {"bias": False}],
)
def test_results_and_gradients_have_the_shapes_that_torch_gives(layer_class, settings):
    _same_shapes(layer_class, settings)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_so_do_those_of_a_projection():
    _same_shapes(nn.LSTM, {"proj_size": 3, "num_layers": 2})


def _same_shapes(layer_class, settings):
    def shapes(model, batch):
        outputs, states = model(batch)
        outputs.sum().backward()
        states = states if isinstance(states, tuple) else (states,)
        gradients = [weight.grad.shape for weight in model.parameters()]
        return [outputs.shape, outputs.stride(), *(state.shape for state in states), *gradients, batch.grad.shape]

    seen = []

    class Shapes(Recurrent):
        def build(self):
            self.model = layer_class(5, 7, **settings).to(self.device)

        def batch(self, size):
            return torch.zeros(size, 6, 5, device=self.device, requires_grad=True)

        def step(self, batch):
            seen.append(shapes(self.model, batch))
            self.model.zero_grad()

    trace(Shapes, Case(), 3, capability=AMPERE)
    real = shapes(layer_class(5, 7, **settings), torch.zeros(3, 6, 5, requires_grad=True))
    if settings.get("batch_first"):
        real[1] = (7, 21, 1)  # on CUDA the storage has the steps first
    assert seen[0] == real


class Packed(Recurrent):
    """Texts of several lengths."""

    def batch(self, size):
        return torch.zeros(size, 10, 123, device=self.device)

    def lengths(self, batch):
        return torch.tensor([10, 4, 2])

    def step(self, batch):
        packed = pack_padded_sequence(batch, self.lengths(batch), batch_first=True, enforce_sorted=False)
        self.rows = packed.data.shape[0]
        outputs, lengths = pad_packed_sequence(self.model(packed)[0], batch_first=True)
        outputs[torch.arange(len(batch)), lengths - 1].mean().backward()
        self.model.zero_grad()


def _reserve(num_rows):
    return num_rows * (4 * 5 + 3) * 320 * FLOAT32_BYTES


def test_of_packed_texts_only_their_own_steps_are_kept():
    assert _reserve(16) in _storages(Packed, 3)


def test_packed_texts_of_unknown_lengths_have_the_longest():
    class Unknown(Packed):
        def lengths(self, batch):
            return (batch[:, :, 0] > 0).sum(1).cpu()

    assert _reserve(30) in _storages(Unknown, 3)


@pytest.mark.parametrize(("cell_class", "num_kept"), [(nn.LSTMCell, 4), (nn.GRUCell, 5)])
def test_a_cell_keeps_what_its_fused_kernel_does(cell_class, num_kept):
    class Cell(Recurrent):
        def build(self):
            self.model = cell_class(64, 64).to(self.device)

        def batch(self, size):
            return torch.zeros(size, 64, device=self.device)

        def step(self, batch):
            states = self.model(batch, self.model(batch))
            (states[0] if isinstance(states, tuple) else states).mean().backward()
            assert all(weight.grad.shape == weight.shape for weight in self.model.parameters())
            self.model.zero_grad()

    kept = _storages(Cell, 16)
    row = 16 * 64 * FLOAT32_BYTES
    assert kept.count(num_kept * row) >= 4  # two calls in each of two steps
    assert max(kept) == num_kept * row
