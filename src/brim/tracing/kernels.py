"""What real kernels do with memory and fake tensors do not show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from brim.tracing.scratch import Scratch, embedding_bytes, reduction_bytes

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
# Which arguments kernels want in a layout of their own.
_LAID_OUT = {
    _aten.native_layer_norm.default: (0,),
    _aten.native_layer_norm_backward.default: (0, 1),
    _aten._softmax.default: (0,),
    _aten._log_softmax.default: (0,),
    _aten._softmax_backward_data.default: (0, 1),
    _aten._log_softmax_backward_data.default: (0, 1),
    _aten.convolution.default: (0,),
    _aten.convolution_backward.default: (0, 1),
}
# Where the weight is that has a say in the layout, and of how many dimensions what is convolved has a choice.
_CONVOLUTIONS = {_aten.convolution.default: 1, _aten.convolution_backward.default: 2}
_IMAGE_DIMS = (4, 5)
# Sums, with the dimensions in their second argument.
_SUMS = (_aten.sum.dim_IntList, _aten.mean.dim)
# Attention by parts; torch 2.4 has none.
_SAFE_SOFTMAX = _aten._safe_softmax.default if hasattr(_aten, "_safe_softmax") else None
# How many columns a thread of a sum takes at once at most.
_MOST_AT_ONCE = 4
# The layouts that batch norm's kernels on the CPU know.
_CONTIGUOUS = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)

FLOAT32_BYTES = 4


def result_bytes(func: Any, args: Sequence[Any]) -> int | None:
    """Return how large a kernel leaves the storage of its result where that is not what the result's shape says."""
    position = _REDUCED_IN_PLACE.get(func)
    if position is None or (args[position] if len(args) > position else _MEAN) == 0:
        return None
    return int(args[0].numel() * args[0].element_size())


def uses_blas(func: Any) -> bool:
    """Return whether an operator runs cuBLAS."""
    return func in _OPERANDS


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


def laid_out(func: Any, args: Sequence[Any]) -> tuple[int, ...]:
    """Return the sizes of the inputs that a kernel on CUDA copies, before it makes its results, into its own layout.

    Sources, all in torch's aten/src/ATen/native: `layer_norm_cuda` and its backward in cuda/layer_norm_kernel.cu;
    `host_softmax` and its backward in cuda/SoftMax.cu;
    `_convolution`, `convolution_backward` in Convolution.cpp, where one dimension is always contiguous.
    """
    inputs = [args[position] for position in _LAID_OUT.get(func, ())]
    if not inputs:
        return ()
    layout = torch.contiguous_format
    if func in _CONVOLUTIONS and inputs[-1].dim() in _IMAGE_DIMS:
        weight = args[_CONVOLUTIONS[func]]
        cudnn = getattr(torch._C, "_ConvBackend").Cudnn  # noqa: B009 - torch's types spell it otherwise
        layout = torch._C._conv_determine_backend_memory_format(inputs[-1], weight, cudnn)
    return tuple(each.numel() * each.element_size() for each in inputs if not each.is_contiguous(memory_format=layout))


def widened(func: Any, args: Sequence[Any]) -> tuple[int, ...]:
    """Return the size of the copy of truth values or small whole numbers that a sum makes, to add up 64 bits.

    Source: `make_reduction` in torch's aten/src/ATen/native/ReduceOpsUtils.h.
    """
    if func not in (_aten.sum.dim_IntList, _aten.sum.default):
        return ()
    values = args[0]
    is_narrow = not values.is_floating_point() and not values.is_complex() and values.dtype is not torch.int64
    return (values.numel() * torch.int64.itemsize,) if is_narrow else ()


def softmax_scratch(func: Any, args: Sequence[Any]) -> tuple[int, ...]:
    """Return what softmax takes on CUDA: backward the gradient times the output, of attention a mask of the scores.

    Sources: `softmax_backward_cuda_out` in torch's aten/src/ATen/native/cuda/SoftMax.cu, `_safe_softmax` in
    .../native/transformers/attention.cpp, which looks for rows that are masked whole.
    """
    if func is _SAFE_SOFTMAX:
        return (args[0].numel(),)
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


def scratch_of(func: Any, args: Sequence[Any]) -> Scratch | None:
    """Return what a kernel on CUDA takes for a moment where that depends on the GPU."""
    if func in _SUMS and args[0].is_floating_point():
        counts = _summed(args[0], args[1])
        return None if counts is None else Scratch(formula=reduction_bytes, counts=counts)
    if func is _aten.embedding_dense_backward.default:
        gradient, indices, num_words = args[:3]
        return Scratch(formula=embedding_bytes, counts=(indices.numel(), num_words, gradient.shape[-1]))
    return None


def _summed(values: torch.Tensor, dims: Sequence[int] | None) -> tuple[int, int, int] | None:
    """Return columns, rows and columns at once of a sum over rows; None where values that are added lie side by side.

    Source: `setReduceConfig` and `get_output_vec_size` in torch's aten/src/ATen/native/cuda/Reduce.cuh.
    """
    summed = {dim % max(values.dim(), 1) for dim in dims or ()}
    lengths = {dim: (values.stride(dim), length) for dim, length in enumerate(values.shape) if length > 1}
    rows = [lengths[dim] for dim in lengths if dim in summed]
    columns = sorted(lengths[dim] for dim in lengths if dim not in summed)
    if not rows or not columns or min(rows)[0] < min(columns)[0]:
        return None
    (step, length), *others = columns
    while others and others[0][0] == step * length:  # columns that lie side by side count as one dimension
        length *= others.pop(0)[1]
    vector = _MOST_AT_ONCE if step == 1 else 1
    while any(each % vector for each in (values.storage_offset(), length, *(each for each, _ in (*rows, *others)))):
        vector //= 2
    return math.prod(each for _, each in columns), math.prod(each for _, each in rows), vector


def round_up(value: int, unit: int) -> int:
    """Return the next multiple of a unit."""
    return -(-value // unit) * unit
