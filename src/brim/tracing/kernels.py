"""What real kernels do with memory and fake tensors do not show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_aten = torch.ops.aten
# These losses shrink their result to one number and leave its storage as large as the input.
# Source: `loss.untyped_storage().nbytes()` of each loss of torch.nn.functional.
_REDUCED_IN_PLACE = {
    _aten.mse_loss.default: 2,
    _aten.smooth_l1_loss.default: 2,
    _aten.binary_cross_entropy.default: 3,
}
_MEAN = 1
# Matrix products, and where the first of their two operands is.
_OPERANDS = {
    _aten.mm.default: 0,
    _aten.bmm.default: 0,
    _aten.addmm.default: 1,
    _aten.baddbmm.default: 1,
}
# The layouts that batch norm's kernels on the CPU know.
_CONTIGUOUS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)

# Channels in one block of oneDNN's layout: nChw8c, and with AVX-512 nChw16c for more channels than that.
_BLOCK = 8
_WIDE_BLOCK = 16
# oneDNN lays matrices out in rows of whole cache lines, one more where rows would repeat in the cache, and buffers in
# whole pages. Source: `get_good_ld` and `set_offsets` in its src/cpu/rnn/rnn_utils.cpp.
_CACHE_LINE_BYTES = 64
_ALIASING_COLUMNS = 256
_PAGE_BYTES = 4096
FLOAT32_BYTES = 4
_NUM_LSTM_GATES = 4


def result_bytes(func: Any, args: Sequence[Any]) -> int | None:
    """Return how large a kernel leaves the storage of its result where that is not what the result's shape says."""
    position = _REDUCED_IN_PLACE.get(func)
    if position is None or (args[position] if len(args) > position else _MEAN) == 0:
        return None
    return int(args[0].numel() * args[0].element_size())


def workspace_bytes(func: Any, args: Sequence[Any]) -> int:
    """Return how much a CPU kernel keeps for its backward pass in the last of its results, which is empty on fakes.

    oneDNN's LSTM keeps, of every step, the gates, the hidden state, and twice (of the step and the one before) the
    states, the cells and the room for the gradients of both.
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


def scratch_bytes(func: Any, args: Sequence[Any], result: Any) -> tuple[int, ...]:
    """Return the sizes of what a CPU kernel holds at once beside its inputs and results, where it grows with the batch.

    oneDNN's convolution copies its images into a layout of its own, in which channels come in blocks.
    Source: the allocator's events of both operations as torch.profiler records them.
    """
    if func is _aten.convolution.default:
        return _blocked(args[0], result)
    if func is _aten.convolution_backward.default:
        return _blocked(args[1], args[0])
    return ()


def operand_copies(func: Any, args: Sequence[Any]) -> tuple[int, ...]:
    """Return the sizes of the operands of a matrix product that are copied first, as no BLAS takes their strides.

    Such is the gradient of a sum, which is one number that is repeated.
    Source: `prepare_matrix_for_cublas` in torch's aten/src/ATen/native/cuda/Blas.cpp, `addmm_impl_cpu_` on the CPU.
    """
    first = _OPERANDS.get(func)
    if first is None:
        return ()
    return tuple(each.numel() * each.element_size() for each in args[first : first + 2] if not _is_blas_matrix(each))


def _is_blas_matrix(matrix: torch.Tensor) -> bool:
    (num_rows, num_columns), (row, column) = matrix.shape[-2:], matrix.stride()[-2:]
    return (column == 1 and row >= max(1, num_columns)) or (row == 1 and column >= max(1, num_rows))


def softmax_scratch(func: Any, args: Sequence[Any]) -> tuple[int, ...]:
    """Return what softmax's backward pass takes on CUDA: the gradient times the output.

    Source: `softmax_backward_cuda_out` in torch's aten/src/ATen/native/cuda/SoftMax.cu.
    """
    if func is not _aten._softmax_backward_data.default:
        return ()
    gradient, output = args[:2]
    return (output.numel() * max(gradient.element_size(), output.element_size()),)


def batch_norm_scratch(func: Any, args: Sequence[Any]) -> tuple[int, ...]:
    """Return what batch norm's backward pass takes on the CPU: the gradient of its input a second time.

    Where all is contiguous, it makes that gradient, and then another in its place.
    Source: the allocator's events of the operation as torch.profiler records them; `batch_norm_backward_cpu_template`
    in torch's aten/src/ATen/native/Normalization.cpp.
    """
    if func is not _aten.native_batch_norm_backward.default:
        return ()
    gradient, inputs, wanted = args[0], args[1], args[9]
    is_alike = any(all(each.is_contiguous(memory_format=way) for each in (gradient, inputs)) for way in _CONTIGUOUS)
    return (inputs.numel() * inputs.element_size(),) if wanted[0] and is_alike else ()


def _blocked(*images: torch.Tensor) -> tuple[int, ...]:
    if any(image.dim() != 4 or image.is_contiguous(memory_format=torch.channels_last) for image in images):
        return ()  # a single image, or a layout that oneDNN takes as it is
    return tuple(_blocked_bytes(image) for image in images)


def _blocked_bytes(image: torch.Tensor) -> int:
    num_channels = image.shape[1]
    is_wide = num_channels > _BLOCK and torch.backends.cpu.get_cpu_capability() == "AVX512"
    block = _WIDE_BLOCK if is_wide else _BLOCK
    padded = round_up(num_channels, block)
    return image.numel() // max(num_channels, 1) * padded * image.element_size()


def _padded_columns(num_columns: int) -> int:
    line = _CACHE_LINE_BYTES // FLOAT32_BYTES
    padded = round_up(num_columns, line)
    return padded if padded % _ALIASING_COLUMNS else padded + line


def round_up(value: int, unit: int) -> int:
    """Return the next multiple of a unit."""
    return -(-value // unit) * unit
