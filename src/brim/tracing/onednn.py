"""What oneDNN, the library of torch's convolutions and LSTMs on the CPU, takes beside inputs and results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from brim.tracing.kernels import FLOAT32_BYTES, round_up

_aten = torch.ops.aten
# Channels in one block of oneDNN's layout: nChw8c, and with AVX-512 nChw16c for more channels than that.
_BLOCK = 8
_WIDE_BLOCK = 16
# Images of so few channels are no reason for a copy in the gradient of the weights.
_FEW_CHANNELS = 3
_IMAGE_DIMS = 4
# oneDNN lays matrices out in rows of whole cache lines, one more where rows would repeat in the cache, and buffers in
# whole pages. Source: `get_good_ld` and `set_offsets` in its src/cpu/rnn/rnn_utils.cpp.
_CACHE_LINE_BYTES = 64
_ALIASING_COLUMNS = 256
_PAGE_BYTES = 4096
_NUM_LSTM_GATES = 4


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of a convolution, with the sizes of the copies that it makes, in bytes.

    Attributes:
        result: What it makes.
        of_inputs: Taken first, and given back before the result is made.
        of_result: Where it computes, given back once that is copied into the result.
        again: Taken once the inputs' are given back, where the result is copied twice.
    """

    result: torch.Tensor
    of_inputs: tuple[int, ...]
    of_result: tuple[int, ...]
    again: tuple[int, ...] = ()


def convolution_passes(func: Any, args: Sequence[Any], result: Any) -> Iterator[Pass]:
    """Yield the passes of a convolution that copies images into a layout in which channels come in blocks.

    Source: the allocator's events of both operations as torch.profiler records them.
    """
    if func is _aten.convolution.default:
        inputs, weights, _, stride, _, _, is_transposed, *_ = args
        if _are_copied(inputs, result):
            yield _pass_of_images(inputs, weights, result, spreads=is_transposed and _is_strided(stride))
    elif func is _aten.convolution_backward.default:
        gradient, inputs, weights, _, stride, _, _, is_transposed, _, _, (of_inputs, of_weights, _) = args
        if not _are_copied(gradient, inputs):
            return
        if of_inputs:
            yield _pass_of_images(gradient, weights, result[0], spreads=not is_transposed and _is_strided(stride))
        if of_weights:
            images = [gradient, *([inputs] if inputs.shape[1] > _FEW_CHANNELS else [])]
            yield Pass(result[1], tuple(_blocked_bytes(each) for each in images), (result[1].nbytes,))


def _pass_of_images(inputs: torch.Tensor, weights: torch.Tensor, result: torch.Tensor, *, spreads: bool) -> Pass:
    """Return a pass from images to images; one that spreads its inputs over more pixels copies its result twice."""
    is_blocked = inputs.shape[1] >= _block(inputs)
    return Pass(
        result,
        of_inputs=(*([_blocked_bytes(inputs)] if is_blocked else []), weights.nbytes),
        of_result=(result.nbytes if spreads else _blocked_bytes(result),),
        again=(result.nbytes,) if spreads else (),
    )


def _are_copied(*images: torch.Tensor) -> bool:
    """Return whether these are batches of images in a layout that oneDNN does not take as it is."""
    return all(
        image.dim() == _IMAGE_DIMS and not image.is_contiguous(memory_format=torch.channels_last) for image in images
    )


def _is_strided(stride: Sequence[int]) -> bool:
    return any(each > 1 for each in stride)


def _block(image: torch.Tensor) -> int:
    is_wide = image.shape[1] > _BLOCK and torch.backends.cpu.get_cpu_capability() == "AVX512"
    return _WIDE_BLOCK if is_wide else _BLOCK


def _blocked_bytes(image: torch.Tensor) -> int:
    num_channels = image.shape[1]
    padded = round_up(num_channels, _block(image))
    return image.numel() // max(num_channels, 1) * padded * image.element_size()


def workspace_bytes(func: Any, args: Sequence[Any]) -> int:
    """Return how much an LSTM keeps for its backward pass in the last of its results, which is empty on fakes.

    That is, of every step, the gates, the hidden state, and twice (of the step and the one before) the states, the
    cells and the room for the gradients of both.
    Source: `set_workspace_sizes` in oneDNN's src/cpu/rnn/rnn_utils.hpp, of a layer and a direction at a time.
    """
    if func is not _aten.mkldnn_rnn_layer.default or args[0].dtype is not torch.float32 or not torch.is_grad_enabled():
        return 0
    num_steps, num_samples, num_inputs = args[0].shape
    num_hidden = args[5].shape[-1]
    widest = _padded_columns(max(num_inputs, num_hidden))
    num_rows = num_steps * num_samples
    num_state_rows = 2 * (num_steps + 1) * num_samples
    matrices = (
        (num_rows, _padded_columns(_NUM_LSTM_GATES * num_hidden)),
        (num_rows, _padded_columns(num_hidden)),
        *[(num_state_rows, widest)] * 3,  # states, gradients of outputs, gradients of states
        *[(num_state_rows, num_hidden)] * 2,  # cells, gradients of cells
    )
    return sum(round_up(rows * columns * FLOAT32_BYTES, _PAGE_BYTES) for rows, columns in matrices)


def _padded_columns(num_columns: int) -> int:
    line = _CACHE_LINE_BYTES // FLOAT32_BYTES
    padded = round_up(num_columns, line)
    return padded if padded % _ALIASING_COLUMNS else padded + line
