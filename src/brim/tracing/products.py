"""Shapes of what convolutions and matrix products return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

_aten = torch.ops.aten


def empty(size: Sequence[int], *, memory_format: Any = None, **kwargs: Any) -> Any:
    """Return an empty tensor without memory."""
    return torch.empty(size, device="meta", memory_format=memory_format or torch.contiguous_format, **kwargs)


def _convolution(
    images: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    if transposed or not _is_plain_convolution(images, weight, groups):
        return NotImplemented
    if bias is not None and bias.shape != weight.shape[:1]:
        return NotImplemented
    pixels = [
        (length + 2 * pad - step * (kernel - 1) - 1) // jump + 1
        for length, pad, step, kernel, jump in zip(
            images.shape[2:], _each(padding), _each(dilation), weight.shape[2:], _each(stride), strict=True
        )
    ]
    if min(pixels) < 1:
        return NotImplemented
    size = (images.shape[0], weight.shape[0], *pixels)
    return empty(size, dtype=images.dtype, memory_format=_convolution_format(images, weight))


def _convolution_backward(gradient: Any, images: Any, weight: Any, bias_sizes: Any, *rest: Any) -> Any:
    transposed, _output_padding, groups, wanted = rest[-4:]
    if transposed or not _is_plain_convolution(images, weight, groups):
        return NotImplemented
    layout = _convolution_format(images, weight)
    return (
        empty(images.shape, dtype=images.dtype, memory_format=layout) if wanted[0] else None,
        empty(weight.shape, dtype=weight.dtype, memory_format=layout) if wanted[1] else None,
        empty(bias_sizes, dtype=weight.dtype) if wanted[2] else None,
    )


def _is_plain_convolution(images: Any, weight: Any, groups: int) -> bool:
    """Return whether a convolution is over a batch of images and its parts belong together."""
    return bool(
        images.dim() == weight.dim() == 4
        and images.dtype is weight.dtype
        and images.shape[1] == weight.shape[1] * groups
        and images.shape[0] > 0
    )


def _convolution_format(images: Any, weight: Any) -> Any:
    # oneDNN asks what cuDNN does: is either of the two in channels-last layout?
    backend = torch._C._ConvBackend.Mkldnn  # type: ignore[attr-defined]
    return torch._C._conv_determine_backend_memory_format(images, weight, backend)


def _addmm(bias: Any, left: Any, right: Any, **_: Any) -> Any:
    _check_types(left, right)
    is_plain = left.dim() == right.dim() == 2 and left.shape[1] == right.shape[0] and left.dtype is bias.dtype
    if not is_plain or bias.shape != right.shape[1:]:
        return NotImplemented
    return empty((left.shape[0], right.shape[1]), dtype=left.dtype)


def _mm(left: Any, right: Any) -> Any:
    _check_types(left, right)
    return _aten.mm.default(left, right)


def _check_types(left: torch.Tensor, right: torch.Tensor) -> None:
    """Refuse what fake tensors let pass and real ones do not."""
    if left.dtype is not right.dtype:
        raise RuntimeError(f"mat1 and mat2 must have the same dtype, but got {left.dtype} and {right.dtype}")


def _each(values: Sequence[int]) -> Sequence[int]:
    """Return a setting of both dimensions of an image; a single number holds for both."""
    return values if len(values) > 1 else (*values, *values)


def _grouped_mm(
    left: Any, right: Any, offsets: Any = None, bias: Any = None, out_dtype: torch.dtype | None = None
) -> Any:
    """Return the shape where torch's own shape function knows bfloat16 alone; real kernels take other types too.

    A matrix whose rows or columns are cut into groups is 2D, one matrix for each group 3D.
    """
    if left.dtype is torch.bfloat16 or left.dtype is not right.dtype or (offsets is None and left.dim() == 2):
        return NotImplemented
    rows, columns = left.shape[-2], right.shape[-1]
    groups = {(3, 3): left.shape[:1], (2, 2): offsets.shape if offsets is not None else None}
    return empty((*(groups.get((left.dim(), right.dim())) or ()), rows, columns), dtype=out_dtype or left.dtype)


PRODUCTS: Mapping[Any, Callable[..., Any]] = {
    _aten.addmm.default: _addmm,
    _aten.mm.default: _mm,
    _aten.convolution.default: _convolution,
    _aten.convolution_backward.default: _convolution_backward,
    # Newer than the oldest torch that brim runs with.
    **({_aten._grouped_mm.default: _grouped_mm} if hasattr(_aten, "_grouped_mm") else {}),
}
