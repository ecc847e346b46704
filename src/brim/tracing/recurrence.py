"""Recurrent layers as on CUDA: cuDNN runs all steps of all layers at once and keeps what its backward pass needs.

torch on the CPU runs them step by step instead, which makes thousands of tensors that a GPU never sees. Here a whole
layer is one function that makes what cuDNN makes: results, what is kept for the backward pass (cuDNN calls it the
reserve), one buffer for the gradients of all weights.
Source: torch's aten/src/ATen/native/cudnn/RNN.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

# What the reserve holds of every sample, step, layer and direction, in numbers of the hidden size: gates, cells and
# what else a cell computes. Source: in pytorch issue 2895 cuDNN asks for 736,000,000 bytes for an LSTM and 864,000,000
# for a GRU, both of four layers with 320 hidden units. That is 4 × 5 + 3 and 4 × 6 + 3 times 320 floats for 25,000
# samples × steps, a number that is inferred. The whole process's memory there agrees with 1 for plain cells. It was in
# 2017; what newer versions of cuDNN keep is not known.
RESERVED = {"lstm": 5, "gru": 6, "rnn_tanh": 1, "rnn_relu": 1}
# What cuDNN takes; torch runs all others step by step. Source: `cudnn_is_acceptable` in ATen/native/cudnn.
_TAKEN = (torch.float16, torch.float32, torch.float64)
_functions = torch._C._VariableFunctions


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """A stack of recurrent layers, as `nn.LSTM` and its like call them.

    Attributes:
        name: Of the function of torch, such as `lstm`.
        num_outputs: Numbers in an output of one direction: the hidden size, or less with a projection.
    """

    name: str
    num_layers: int
    num_directions: int
    num_hidden: int
    num_outputs: int
    trains: bool
    batch_first: bool

    def num_reserved(self, num_rows: int) -> int:
        """Return how many numbers are kept for the backward pass of so many samples × steps.

        Besides what every layer keeps, these are the outputs between two layers.
        """
        cells = self.num_layers * RESERVED[self.name] * self.num_hidden
        return num_rows * self.num_directions * (cells + (self.num_layers - 1) * self.num_outputs)


class _Recurrence(torch.autograd.Function):
    """All steps of all layers: makes outputs and last states, then one gradient for each argument."""

    @staticmethod
    def forward(ctx: Any, layers: _Layers, inputs: torch.Tensor, *states_and_weights: torch.Tensor) -> Any:
        num_states = 2 if layers.name == "lstm" else 1
        states, weights = states_and_weights[:num_states], states_and_weights[num_states:]
        steps_first = _steps_first(inputs, layers)
        packed = steps_first.contiguous()  # for as long as the kernel runs
        outputs = inputs.new_empty(*packed.shape[:-1], layers.num_directions * layers.num_outputs)
        last = tuple(torch.empty_like(state) for state in states)
        ctx.layers, ctx.num_states = layers, num_states
        if layers.trains:
            reserve = inputs.new_empty(layers.num_reserved(math.prod(packed.shape[:-1])))
            ctx.save_for_backward(inputs, outputs, reserve, *states, *weights)
        if layers.batch_first:
            outputs = outputs.transpose(0, 1)
        return outputs, *last

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        layers = ctx.layers
        if not layers.trains:
            raise RuntimeError("cudnn RNN backward can only be called in training mode")
        inputs, _outputs, _reserve, *rest = ctx.saved_tensors
        states, weights = rest[: ctx.num_states], rest[ctx.num_states :]
        _gradient = _steps_first(gradients[0], layers).contiguous()
        packed = _steps_first(inputs, layers).contiguous()
        of_inputs = torch.empty_like(packed)
        of_states = [torch.empty_like(state) for state in states]
        flat = weights[0].new_empty(sum(weight.numel() for weight in weights))
        of_weights = _views(flat, weights)
        return None, _steps_first(of_inputs, layers), *of_states, *of_weights


def _steps_first(values: torch.Tensor, layers: _Layers) -> torch.Tensor:
    return values.transpose(0, 1) if layers.batch_first else values


def _views(flat: torch.Tensor, weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Cut one buffer into the shapes of weights."""
    cut = flat.split([weight.numel() for weight in weights])
    return [view.view(weight.shape) for view, weight in zip(cut, weights, strict=True)]


def _run(name: str, *args: Any) -> Any:
    """Run recurrent layers; args as of `torch.lstm` and its like, for a padded or a packed batch."""
    inputs, *rest = args
    is_packed = isinstance(args[3], (list, tuple))
    if is_packed:
        rest.pop(0)  # how many samples every step has
    states, weights, _has_bias, num_layers, _dropout, trains, bidirectional = rest[:7]
    states = states if isinstance(states, (list, tuple)) else (states,)
    function = getattr(_functions, name)
    dtype = _autocast_dtype() or inputs.dtype
    if inputs.dtype not in _TAKEN or not torch.backends.cudnn.enabled:
        return function(*args)
    layers = _Layers(
        name=name,
        num_layers=num_layers,
        num_directions=2 if bidirectional else 1,
        num_hidden=states[-1].shape[-1],
        num_outputs=states[0].shape[-1],
        trains=trains,
        batch_first=not is_packed and bool(rest[7]),
    )
    return _Recurrence.apply(layers, *(each.to(dtype) for each in (inputs, *states, *weights)))


def _autocast_dtype() -> torch.dtype | None:
    """Return what autocast makes of arguments: float16, whichever type is asked for.

    Source: `_cudnn_rnn_cast_reflatten` in ATen/native/cudnn/RNN.cpp.
    """
    return torch.float16 if torch.is_autocast_enabled("cpu") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """What one kernel does after the two matrix products of a cell, all in numbers of the hidden size.

    Source: `_thnn_fused_lstm_cell` and `_thnn_fused_gru_cell` in torch's aten/src/ATen/native/cuda/RNN.cu.
    """

    num_gates: int
    num_kept: int
    num_states: int


_CELLS = {
    "lstm_cell": _Cell(num_gates=4, num_kept=4, num_states=2),
    "gru_cell": _Cell(num_gates=3, num_kept=5, num_states=1),
}


class _FusedCell(torch.autograd.Function):
    """What follows the matrix products: makes the new states, then a gradient for each argument."""

    @staticmethod
    def forward(ctx: Any, cell: _Cell, of_input: torch.Tensor, of_state: torch.Tensor, *rest: Any) -> Any:
        state, bias, _ = rest
        new = [torch.empty_like(state) for _ in range(cell.num_states)]
        workspace = state.new_empty(*state.shape[:-1], cell.num_kept * state.shape[-1])
        ctx.cell, ctx.has_bias, ctx.shape = cell, bias is not None, state.shape
        ctx.save_for_backward(workspace, *((state, new[1]) if cell.num_states > 1 else ()))
        return tuple(new)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        workspace, *_cells = ctx.saved_tensors
        *rows, num_hidden = ctx.shape
        of_input = of_state = workspace.new_empty(*rows, ctx.cell.num_gates * num_hidden)
        if ctx.cell.num_states == 1:
            of_state = torch.empty_like(of_input)
        of_biases = (of_input.sum(0), of_state.sum(0)) if ctx.has_bias else (None, None)
        return None, of_input, of_state, workspace.new_empty(ctx.shape), *of_biases


def _run_cell(name: str, inputs: torch.Tensor, states: Any, *weights: Any) -> Any:
    """Run one step of a cell; args as of `torch.lstm_cell` and `torch.gru_cell`."""
    hidden, kept = states if name == "lstm_cell" else (states, states)
    of_inputs, of_states, *biases = (*weights, None, None)[:4]
    gates = F.linear(inputs, of_inputs), F.linear(hidden, of_states)
    new = _FusedCell.apply(_CELLS[name], *gates, kept.to(gates[0].dtype), *biases)
    return new if name == "lstm_cell" else new[0]


# What stands in for the functions of torch in a trace.
FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    **{getattr(_functions, name): partial(_run, name) for name in RESERVED},
    **{getattr(_functions, name): partial(_run_cell, name) for name in _CELLS},
}


@contextmanager
def weights_in_one_buffer(has_place: Callable[[torch.Tensor], bool]) -> Iterator[None]:
    """Let the weights of recurrent layers lie in one buffer when they are on the GPU, as cuDNN wants them.

    Args:
        has_place: Tells whether a tensor is on the GPU.
    """

    def flatten(layers: nn.RNNBase) -> None:
        weights = [weight for weight in layers._flat_weights if isinstance(weight, torch.Tensor)]
        if len(weights) != len(layers._flat_weights) or not all(has_place(weight) for weight in weights):
            return
        if len({weight.dtype for weight in weights}) > 1 or weights[0].dtype not in _TAKEN:
            return
        with torch.no_grad():
            flat = weights[0].new_empty(sum(weight.numel() for weight in weights))
            for weight, view in zip(weights, _views(flat, weights), strict=True):
                weight.data = view

    with mock.patch.object(nn.RNNBase, "flatten_parameters", flatten):
        yield
