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

FLOAT32_BYTES = 4


def result_bytes(func: Any, args: Sequence[Any]) -> int | None:
    """Return how large a kernel leaves the storage of its result where that is not what the result's shape says."""
    position = _REDUCED_IN_PLACE.get(func)
    if position is None or (args[position] if len(args) > position else _MEAN) == 0:
        return None
    return int(args[0].numel() * args[0].element_size())


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


def round_up(value: int, unit: int) -> int:
    """Return the next multiple of a unit."""
    return -(-value // unit) * unit
