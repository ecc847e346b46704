"""Shorter ways to the same fake results: most of a trace's time would go into finding out what is known beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.utils._python_dispatch import _disable_current_modes

from brim.tracing.products import PRODUCTS, empty

_aten = torch.ops.aten
_CPU = torch.device("cpu")
# Operators whose own shape functions are exact and written in C++: asked directly they answer ten times as fast as
# through fake tensors' decompositions.
_DIRECT_NAMES = """
alias detach view _unsafe_view t transpose.int permute expand unsqueeze squeeze.dim squeeze.dims select.int
slice.Tensor split.Tensor split_with_sizes unbind.int as_strided
bmm baddbmm mean.dim cat clone _to_copy empty_like zeros_like ones_like new_empty new_zeros
_softmax _log_softmax
"""
# Operators that return their first tensor, changed.
_IN_PLACE_NAMES = """
add_.Tensor add_.Scalar sub_.Tensor mul_.Tensor mul_.Scalar div_.Tensor div_.Scalar addcmul_ addcdiv_ lerp_.Scalar sqrt_
copy_ zero_ fill_.Scalar relu_ silu_ sigmoid_ uniform_ normal_ clamp_ erfinv_
"""
# Of those, the ones that count, e.g. the steps that BatchNorm and Adam have seen: known values stay known.
_COUNTING_NAMES = "add_.Tensor add_.Scalar zero_ fill_.Scalar"
# Operators whose result is like their tensors where these are all of one shape, type and layout.
_ARITHMETIC_NAMES = "add.Tensor sub.Tensor mul.Tensor div.Tensor mul.Scalar div.Scalar"
# Operators of which nothing but that is known.
_ELEMENTWISE_NAMES = """
neg exp log sqrt rsqrt tanh sigmoid relu gelu silu hardswish hardsigmoid pow.Tensor_Scalar gelu_backward silu_backward
sigmoid_backward tanh_backward threshold_backward hardswish_backward hardsigmoid_backward _softmax_backward_data
_log_softmax_backward_data
"""


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(_aten, packet), overload or "default")


_DIRECT = frozenset(_overload(name) for name in _DIRECT_NAMES.split())
_IN_PLACE = frozenset(_overload(name) for name in _IN_PLACE_NAMES.split())
_COUNTING = frozenset(_overload(name) for name in _COUNTING_NAMES.split())
_ARITHMETIC = frozenset(_overload(name) for name in _ARITHMETIC_NAMES.split())
_ELEMENTWISE = frozenset(_overload(name) for name in _ELEMENTWISE_NAMES.split())


class Shortcuts:
    """Answers operators on the fake tensors of one mode, all of them on the CPU."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        # What torch notes on a fake tensor, the same on all of one mode: copied, it need not be found out for each.
        with _disable_current_modes():
            self._notes = dict(vars(FakeTensor(mode, torch.empty((), device="meta"), _CPU)))

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return what `func` returns on fake tensors; `NotImplemented` where there is no shortcut."""
        shape_function = _SHAPE_FUNCTIONS.get(func)
        if shape_function is None:
            return NotImplemented
        if func in _COUNTING and _is_counter(*args):
            with _disable_current_modes():
                func(args[0].constant, *args[1:])
            return args[0]
        if not self._are_ours(args, known=func in _NORMS):
            return NotImplemented
        if func in _IN_PLACE and _stays(*args):
            return args[0]
        device = kwargs.get("device")
        if device is not None:
            if device.type != "cpu":
                return NotImplemented
            kwargs = {name: value for name, value in kwargs.items() if name != "device"}
        with in_kernel_invocation_manager(self._mode):
            result = shape_function(*args, **kwargs)
        return result if result is NotImplemented else self._wrap(result)

    def _are_ours(self, args: Sequence[Any], *, known: bool) -> bool:
        """Return whether all tensors are fake ones of this mode, and none has known values unless that is allowed."""
        for value in args:
            if isinstance(value, torch.Tensor):
                if type(value) is not FakeTensor or value.fake_mode is not self._mode:
                    return False
                if value.constant is not None and not known:
                    return False
            elif isinstance(value, (list, tuple)) and not self._are_ours(value, known=known):
                return False
        return True

    def _wrap(self, result: Any) -> Any:
        if isinstance(result, FakeTensor):
            return result
        if isinstance(result, torch.Tensor):
            fake: FakeTensor = torch.Tensor._make_subclass(
                FakeTensor, result, result.requires_grad, dispatch_device=True, device_for_backend_keys=_CPU
            )
            torch._C._set_throw_on_mutable_data_ptr(fake)
            vars(fake).update(self._notes)
            return fake
        if isinstance(result, (list, tuple)):
            return type(result)(self._wrap(item) for item in result)
        return result


def _batch_norm(images: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, *_: Any) -> Any:
    # The statistics are kept in float32 even of float16 images.
    dtype = torch.float64 if images.dtype is torch.float64 else torch.float32
    statistics = (images.shape[1] if training else 0,)
    return _empty_like(images), *(empty(statistics, dtype=dtype) for _ in range(2))


def _batch_norm_backward(
    gradient: Any, images: Any, weight: Any, mean: Any, variance: Any, save_mean: Any, save_std: Any, *rest: Any
) -> Any:
    _training, _epsilon, wanted = rest
    parameter = save_mean if weight is None else weight
    return _like_wanted((images, parameter, parameter), wanted)


def _layer_norm(values: Any, normalized: Sequence[int], weight: Any, bias: Any, *_: Any) -> Any:
    kept = values.dim() - len(normalized)
    if any(each is not None and each.shape != values.shape[kept:] for each in (weight, bias)):
        return NotImplemented
    if kept < 0 or list(values.shape[kept:]) != list(normalized):
        return NotImplemented
    statistics = (*values.shape[:kept], *[1] * len(normalized))
    return tuple(empty(size, dtype=values.dtype) for size in (values.shape, statistics, statistics))


def _layer_norm_backward(
    gradient: Any, values: Any, normalized: Sequence[int], mean: Any, std: Any, weight: Any, bias: Any, wanted: Any
) -> Any:
    return _like_wanted((values, weight, bias), wanted)


def _like_wanted(tensors: Sequence[Any], wanted: Sequence[bool]) -> tuple[Any, ...]:
    return tuple(
        _empty_like(tensor) if is_wanted and tensor is not None else None
        for tensor, is_wanted in zip(tensors, wanted, strict=True)
    )


def _like_first(*args: Any, **kwargs: Any) -> Any:
    first = args[0]
    if not first.is_floating_point() or not _is_dense(first):
        return NotImplemented
    for other in args[1:]:
        if isinstance(other, torch.Tensor) and not _is_like(first, other):
            return NotImplemented
    return _empty_like(first)


def _like_first_or(func: Any) -> Callable[..., Any]:
    def shape_function(*args: Any, **kwargs: Any) -> Any:
        result = _like_first(*args, **kwargs)
        if result is NotImplemented:
            result = _like_larger(*args)
        return func(*args, **kwargs) if result is NotImplemented else result

    return shape_function


def _like_larger(first: Any, second: Any, *_: Any) -> Any:
    """Return what arithmetic makes of two plain tensors of one type, the smaller of which is repeated."""
    if not isinstance(second, torch.Tensor) or first.dtype is not second.dtype:
        return NotImplemented
    smaller, larger = sorted((first, second), key=lambda tensor: tensor.dim())
    if smaller.numel() > larger.numel():
        smaller, larger = larger, smaller
    lengths = zip(reversed(smaller.shape), reversed(larger.shape), strict=False)
    is_plain = larger.is_floating_point() and smaller.is_contiguous() and larger.is_contiguous()
    if not is_plain or smaller.dim() > larger.dim() or any(each not in (1, other) for each, other in lengths):
        return NotImplemented
    return _empty_like(larger)


def _sum(values: Any, dims: Sequence[int] | None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if not dims or dtype is not None or not values.is_floating_point() or not values.is_contiguous():
        return _aten.sum.dim_IntList(values, dims, keepdim, dtype=dtype)
    gone = {dim % max(values.dim(), 1) for dim in dims}
    lengths = [1 if dim in gone else length for dim, length in enumerate(values.shape) if keepdim or dim not in gone]
    return empty(lengths, dtype=values.dtype)


def _is_counter(first: torch.Tensor, *others: Any) -> bool:
    """Return whether a tensor of known values is changed by a number."""
    return (
        type(first) is FakeTensor
        and first.constant is not None
        and all(isinstance(other, (int, float)) for other in others)
    )


def _stays(first: torch.Tensor, *others: Any) -> bool:
    """Return whether it is plain to see that a tensor can take what is written to it."""
    return first.is_floating_point() and all(
        other.shape == first.shape or not other.dim() for other in others if isinstance(other, torch.Tensor)
    )


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    if not _is_dense(tensor):
        return torch.empty_like(tensor)
    # The same, fifteen times as fast.
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))


def _is_like(first: torch.Tensor, other: torch.Tensor) -> bool:
    return first.shape == other.shape and first.dtype is other.dtype and first.stride() == other.stride()


_NORMS: Mapping[Any, Callable[..., Any]] = {
    _aten.native_batch_norm.default: _batch_norm,
    _aten.native_batch_norm_backward.default: _batch_norm_backward,
    _aten.native_layer_norm.default: _layer_norm,
    _aten.native_layer_norm_backward.default: _layer_norm_backward,
}
_SHAPE_FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    **{func: func for func in _DIRECT},
    **{func: func for func in _IN_PLACE},
    **{func: _like_first_or(func) for func in _ARITHMETIC},
    **dict.fromkeys(_ELEMENTWISE, _like_first),
    **_NORMS,
    **PRODUCTS,
    _aten.sum.dim_IntList: _sum,
    _aten.empty.memory_format: empty,
}
