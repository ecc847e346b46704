"""CUDA's autocast policy, imposed on tensors that live on the CPU.

Which operations run in low precision, which in float32 and which in the widest type of their inputs differs between
the two devices, and with it the memory of every activation. The lists are those of torch's
aten/src/ATen/autocast_mode.h; the cache of casted weights is torch's own and needs no help.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.utils._pytree import tree_map

_LOWER_PRECISION_NAMES = """
convolution _convolution addmv addr mv prelu einsum chain_matmul linalg_multi_dot lstm_cell gru_cell rnn_tanh_cell
rnn_relu_cell
"""
_LOWER_PRECISION = tuple(_LOWER_PRECISION_NAMES.split())
_FLOAT32_NAMES = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus
layer_norm native_layer_norm rms_norm group_norm frobenius_norm nuclear_norm linalg_matrix_norm norm renorm dist pdist
cdist logsumexp
cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div
l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss
triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits
upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d
_upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d
upsample_bicubic2d _upsample_bicubic2d_aa
"""
_FLOAT32 = tuple(_FLOAT32_NAMES.split())
# These take the type of their result as an argument, so that no casted copy of the input is made.
_FLOAT32_RESULT = ("prod", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm", "sum")
_WIDEST = (
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "scatter_add",
    "tensordot",
)
_KEY = "AutocastCPU"
# Newer torches want to hear that replacing a kernel is meant; older ones do not ask.
_IS_ASKED = "allow_override" in inspect.signature(torch.library.Library.impl).parameters
_REPLACING = {"allow_override": True} if _IS_ASKED else {}
_KEYS = ("CPU", "CUDA")


@contextmanager
def cuda_autocast_policy(*, is_host_apart: bool) -> Iterator[None]:
    """Make `torch.autocast` on the CPU do what it does on CUDA, and `torch.autocast("cuda")` be that.

    Args:
        is_host_apart: Whether `torch.autocast("cpu")` is for the host, and so for nothing that counts.
    """
    library = torch.library.Library("aten", "IMPL")
    autocast = torch.amp.autocast_mode.autocast
    try:
        _register(library)
        with (
            mock.patch.object(autocast, "__init__", _on_cpu(autocast.__init__, is_host_apart)),
            mock.patch.object(torch, "is_autocast_enabled", _asked_of_cpu(torch.is_autocast_enabled)),
            mock.patch.object(torch, "get_autocast_dtype", _dtype_in(torch.get_autocast_dtype)),
        ):
            yield
    finally:
        library._destroy()


def _on_cpu(original: Callable[..., None], is_host_apart: bool) -> Callable[..., None]:
    def init(
        self: Any,
        device_type: str,
        dtype: torch.dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if device_type == "cuda" and dtype is None:
            dtype = torch.get_autocast_dtype("cuda")
        if device_type == "cpu" and is_host_apart:  # what CUDA's does stays as it is
            dtype, enabled = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")
        original(self, "cpu" if device_type == "cuda" else device_type, dtype, enabled, cache_enabled)

    return init


def _asked_of_cpu(is_enabled: Callable[[str], bool]) -> Callable[[str], bool]:
    def is_autocast_enabled(device_type: str = "cuda") -> bool:
        return is_enabled("cpu" if device_type == "cuda" else device_type)

    return is_autocast_enabled


def _dtype_in(get_dtype: Callable[[str], torch.dtype]) -> Callable[[str], torch.dtype]:
    def get_autocast_dtype(device_type: str) -> torch.dtype:
        in_block = device_type == "cuda" and torch.is_autocast_enabled("cpu")
        return get_dtype("cpu" if in_block else device_type)

    return get_autocast_dtype


def _register(library: Any) -> None:
    on_cpu, on_cuda = (set(torch._C._dispatch_get_registrations_for_dispatch_key(f"Autocast{key}")) for key in _KEYS)
    # What the CPU's autocast casts and CUDA's does not runs as it is: torch itself says which operators each knows.
    for name in sorted(on_cpu - on_cuda):
        library.impl(name.removeprefix("aten::"), torch.library.fallthrough_kernel, _KEY, **_REPLACING)
    for names, make in (
        (_LOWER_PRECISION, _in_low_precision),
        (_FLOAT32, _in_float32),
        (_FLOAT32_RESULT, _with_float32_result),
        (_WIDEST, _in_the_widest),
    ):
        for name in names:
            for overload in _overloads(name):
                if str(overload._name).removesuffix(".default") in on_cuda:
                    library.impl(overload, make(overload), _KEY, **_REPLACING)


def _overloads(name: str) -> list[Any]:
    base, _, only = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    if packet is None:
        return []
    return [getattr(packet, overload) for overload in packet.overloads() if only in ("", overload)]


def _without_autocast(overload: Any, cast: Callable[[Any], Any], args: Any, kwargs: Any) -> Any:
    """Call an operator with its arguments cast, the last first, as compiled code does."""
    args = [tree_map(cast, each) for each in reversed(args)][::-1]
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        return overload(*args, **tree_map(cast, kwargs))


def _leave(value: Any) -> Any:
    return value


def _cast(dtype: torch.dtype) -> Callable[[Any], Any]:
    def cast(value: Any) -> Any:
        is_castable = isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64
        return value.to(dtype) if is_castable and value.dtype != dtype else value

    return cast


def _in_low_precision(overload: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        cast = _cast(torch.get_autocast_dtype("cpu"))
        return _without_autocast(overload, cast, args, kwargs)

    return kernel


def _in_float32(overload: Any) -> Callable[..., Any]:
    cast = _cast(torch.float32)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return _without_autocast(overload, cast, args, kwargs)

    return kernel


def _with_float32_result(overload: Any) -> Callable[..., Any]:
    takes_dtype = any(argument.name == "dtype" for argument in overload._schema.arguments)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        low = isinstance(args[0], torch.Tensor) and args[0].dtype in (torch.float16, torch.bfloat16)
        positions = [argument.name for argument in overload._schema.arguments]
        given = "dtype" in kwargs or (takes_dtype and len(args) > positions.index("dtype"))
        if low and takes_dtype and not given:
            kwargs = {**kwargs, "dtype": torch.float32}
        return _without_autocast(overload, _leave, args, kwargs)

    return kernel


def _in_the_widest(overload: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        has_float32 = False

        def look(value: Any) -> Any:
            nonlocal has_float32
            has_float32 |= isinstance(value, torch.Tensor) and value.dtype == torch.float32
            return value

        tree_map(look, (args, kwargs))
        cast = _cast(torch.float32 if has_float32 else torch.get_autocast_dtype("cpu"))
        return _without_autocast(overload, cast, args, kwargs)

    return kernel
