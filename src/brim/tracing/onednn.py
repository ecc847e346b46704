"""What oneDNN takes beside inputs and results: torch's library on the CPU for convolutions, LSTMs and bfloat16."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from brim.tracing.kernels import FLOAT32_BYTES, round_up

_aten = torch.ops.aten
# Channels in one block of oneDNN's layout: nChw8c, and with AVX-512 nChw16c.
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
# Matrix products, and where the first of their two operands is.
_PRODUCTS = {_aten.mm.default: 0, _aten.addmm.default: 1}


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

    A transposed one is a convolution from its results to its inputs, run backwards.
    Source: the allocator's events of both operations as torch.profiler records them.
    """
    if func is _aten.convolution.default:
        images, weights, _, stride, _, _, is_transposed, _, num_groups = args
        if not _are_copied(images, result):
            return
        spreads = num_groups == 1 and _is_strided(stride)
        yield _backwards(images, weights, result, spreads) if is_transposed else _forwards(images, weights, result)
    elif func is _aten.convolution_backward.default:
        gradient, images, weights, _, stride, _, _, is_transposed, _, num_groups, (of_images, of_weights, _) = args
        if not _are_copied(gradient, images):
            return
        spreads = num_groups == 1 and _is_strided(stride)
        if of_images and is_transposed:
            yield _forwards(gradient, weights, result[0])
        elif of_images:
            yield _backwards(gradient, weights, result[0], spreads)
        if of_weights:
            if is_transposed:
                copies = (*_copy_of_inputs(gradient), _blocked_bytes(images))
            else:
                copies = (_blocked_bytes(gradient), *_copy_of_inputs(images))
            yield Pass(result[1], copies, (result[1].nbytes,))


def _copy_of_inputs(images: torch.Tensor) -> tuple[int, ...]:
    """Return what the gradient of the weights copies of a convolution's inputs."""
    num_channels = images.shape[1]
    if num_channels <= _FEW_CHANNELS:
        return ()
    return (_blocked_bytes(images, _BLOCK if num_channels <= _BLOCK else None),)


def _forwards(inputs: torch.Tensor, weights: torch.Tensor, outputs: torch.Tensor) -> Pass:
    """Return the pass from inputs to outputs."""
    copies = (_blocked_bytes(inputs),) if inputs.shape[1] >= _block() else ()
    return Pass(outputs, (*copies, weights.nbytes), (_blocked_bytes(outputs),))


def _backwards(outputs: torch.Tensor, weights: torch.Tensor, inputs: torch.Tensor, spreads: bool) -> Pass:
    """Return the pass from outputs to inputs; where it spreads them over more pixels it has the layout NHWC."""
    if not spreads:
        return Pass(inputs, (_blocked_bytes(outputs), weights.nbytes), (_blocked_bytes(inputs),))
    again = (inputs.nbytes,) if inputs.shape[1] > 1 else ()
    return Pass(inputs, (outputs.nbytes, weights.nbytes), (inputs.nbytes,), again)


def _are_copied(*images: torch.Tensor) -> bool:
    """Return whether these are batches of images in a layout that oneDNN does not take as it is."""
    return all(image.dim() == _IMAGE_DIMS and image.is_contiguous() for image in images)


def _is_strided(stride: Sequence[int]) -> bool:
    return any(each > 1 for each in stride)


def _block() -> int:
    return _WIDE_BLOCK if torch.backends.cpu.get_cpu_capability() == "AVX512" else _BLOCK


def _blocked_bytes(image: torch.Tensor, block: int | None = None) -> int:
    num_channels = image.shape[1]
    return image.nbytes // max(num_channels, 1) * round_up(num_channels, block or _block())


def product_scratch(func: Any, args: Sequence[Any]) -> tuple[int, ...]:
    """Return what a product in bfloat16 takes where the processor cannot compute in it: its result in float32.

    Source: the allocator's events as torch.profiler records them, on a processor with AVX-512 and without bfloat16.
    """
    first = _PRODUCTS.get(func)
    if first is None or args[first].dtype is not torch.bfloat16 or torch.cpu._is_avx512_bf16_supported():
        return ()
    return (args[first].shape[0] * args[first + 1].shape[1] * FLOAT32_BYTES,)


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
