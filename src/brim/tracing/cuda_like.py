"""A trace on a CPU-only torch that behaves as the job would on CUDA.

The tensors are fake and live on the CPU. What differs between the two devices and shows in memory is imposed: where
tensors go, which attention kernel runs, what dropout keeps, which optimizers work on all parameters at once, what
autocast casts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from brim.tracing.autocast import cuda_autocast_policy

_ATTENTION = F.scaled_dot_product_attention
# What is treated apart whatever its arguments; most calls are none of these, and there are thousands.
_CUDA_FUNCTIONS = frozenset((torch.Tensor.cuda, torch.Tensor.to, _ATTENTION))
_HALF = (torch.float16, torch.bfloat16)
# The widest head that the fused kernels take (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).
_FLASH_HEAD = 256
# Flash attention needs Ampere or newer.
_FLASH_CAPABILITY = (8, 0)
_NOOPS = ("synchronize", "set_device", "reset_peak_memory_stats")


def has_flash_attention(capability: tuple[int, int]) -> bool:
    """Return whether a GPU has it: all else that a trace shows is the same on every generation."""
    return capability >= _FLASH_CAPABILITY


@contextmanager
def as_on_cuda(capability: tuple[int, int]) -> Iterator[None]:
    """Let what runs in the block behave as on a GPU of this compute capability."""
    with ExitStack() as stack:
        stack.enter_context(cuda_autocast_policy())
        stack.enter_context(_cuda_dropout())
        for module in [module for name, module in sys.modules.items() if name.startswith("torch.optim.")]:
            if hasattr(module, "_default_to_fused_or_foreach"):
                stack.enter_context(mock.patch.object(module, "_default_to_fused_or_foreach", _default_to_foreach))
        for name in _NOOPS:
            stack.enter_context(mock.patch.object(torch.cuda, name))
        functions = _CudaFunctions(capability)
        # Inside another function of torch the mode is not asked, so attention is replaced by name as well.
        stack.enter_context(mock.patch.object(F, "scaled_dot_product_attention", functions.attend))
        stack.enter_context(functions)
        yield


@contextmanager
def _cuda_dropout() -> Iterator[None]:
    """Let dropout keep a byte for every value, as its kernel on CUDA does; the CPU's keeps one more of its inputs.

    Source: `is_fused_kernel_acceptable` in torch's aten/src/ATen/native/Dropout.cpp.
    """
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("dropout", _dropout, "AutogradCPU")
        yield
    finally:
        library._destroy()


def _dropout(values: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    if p == 0 or not train or not values.numel():
        return values
    if p == 1:
        return values * torch.zeros((), dtype=values.dtype, device=values.device)
    dropped: torch.Tensor = torch.ops.aten.native_dropout(values, p, train)[0]
    return dropped


def _default_to_foreach(params: Any, differentiable: bool, use_fused: bool = False) -> tuple[bool, bool]:
    """Return (fused, foreach) as torch does for parameters that are all on CUDA."""
    return (False, False) if differentiable else (use_fused, not use_fused)


class _CudaFunctions(TorchFunctionMode):
    """Sends what is meant for CUDA to the CPU, and attention to CUDA's kernels."""

    def __init__(self, capability: tuple[int, int]) -> None:
        super().__init__()
        self._capability = capability

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if not kwargs and func not in _CUDA_FUNCTIONS:
            return func(*args)
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func is _ATTENTION:
            return self.attend(*args, **kwargs)
        if "device" in kwargs:
            kwargs["device"] = _on_cpu(kwargs["device"])
        if func is torch.Tensor.to:
            args = tuple(_on_cpu(value) for value in args)
        return func(*args, **kwargs)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """Attend with the kernel that CUDA would pick: flash, memory-efficient, or by parts."""
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
            attn_mask = attn_mask.to(dtype) if attn_mask is not None and attn_mask.is_floating_point() else attn_mask
        if enable_gqa and query.dim() == 4:
            repeats = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        if query.dim() != 4 or query.shape[-1] > _FLASH_HEAD or query.shape[-1] % 8:
            return _attend_by_parts(query, key, value, attn_mask, dropout_p, is_causal, scale)
        attended: torch.Tensor
        if query.dtype in _HALF and attn_mask is None and has_flash_attention(self._capability):
            attended = torch.ops.aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=scale
            )[0]
            return attended
        bias = None
        if attn_mask is not None:
            bias = torch.zeros_like(attn_mask, dtype=query.dtype) if attn_mask.dtype == torch.bool else attn_mask
            bias = bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
        attended = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, needs_grad, dropout_p, is_causal, scale=scale
        )[0]
        return attended


def _attend_by_parts(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """Attend as the kernel does that no fused one can replace: with the whole matrix of scores."""
    attended: torch.Tensor = torch.ops.aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale
    )[0]
    return attended


def _on_cpu(value: Any) -> Any:
    """Return the CPU for a CUDA device, however it is written; everything else as it is."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    if isinstance(value, str) and value.startswith("cuda"):
        return "cpu"
    return value
