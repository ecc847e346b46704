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
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from brim.tracing.autocast import cuda_autocast_policy
from brim.tracing.gpu_questions import GpuAnswers, gpu_that_answers
from brim.tracing.places import GPU, Places, named_device, on_cpu

_ATTENTION = F.scaled_dot_product_attention
_HALF = (torch.float16, torch.bfloat16)
# The widest head that the fused kernels take (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp).
_FLASH_HEAD = 256
# Flash attention needs Ampere or newer.
_FLASH_CAPABILITY = (8, 0)


def has_flash_attention(capability: tuple[int, int]) -> bool:
    """Return whether a GPU has it: all else that a trace shows is the same on every generation."""
    return capability >= _FLASH_CAPABILITY


@contextmanager
def as_on_cuda(capability: tuple[int, int], places: Places) -> Iterator[GpuAnswers]:
    """Let what runs in the block behave as on a GPU of this compute capability.

    Args:
        capability: The compute capability.
        places: Is told what goes to the GPU.
    """
    with ExitStack() as stack:
        stack.enter_context(cuda_autocast_policy())
        answers = stack.enter_context(gpu_that_answers(capability))
        stack.enter_context(_cuda_dropout())
        for module in [module for name, module in sys.modules.items() if name.startswith("torch.optim.")]:
            if hasattr(module, "_default_to_fused_or_foreach"):
                stack.enter_context(mock.patch.object(module, "_default_to_fused_or_foreach", _default_to_foreach))
        functions = _CudaFunctions(capability, places)
        # Inside another function of torch the mode is not asked, so attention is replaced by name as well.
        stack.enter_context(mock.patch.object(F, "scaled_dot_product_attention", functions.attend))
        stack.enter_context(mock.patch.object(FakeTensor, "device", _device_in(places)))
        stack.enter_context(functions)
        yield answers


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
    """Sends what is meant for CUDA to the CPU and notes that it is there, and attention to CUDA's kernels."""

    def __init__(self, capability: tuple[int, int], places: Places) -> None:
        super().__init__()
        self._capability = capability
        self._places = places
        # What is treated apart whatever its arguments; most calls are none of these, and there are thousands.
        self._own: dict[Any, Callable[..., Any]] = {
            _ATTENTION: self.attend,
            torch.Tensor.to: self._to,
            torch.Tensor.cuda: self._to_gpu,
            torch.Tensor.cpu: self._to_host,
            torch.Tensor.pin_memory: _itself,
            torch.Tensor.numpy: self._numpy,
            torch.Tensor.device.__get__: self._device,
            torch.Tensor.is_cuda.__get__: self._is_cuda,  # type: ignore[attr-defined]
            torch.Tensor.is_cpu.__get__: self._is_cpu,  # type: ignore[attr-defined]
            torch.Tensor.get_device: self._get_device,
            # These take devices and make nothing.
            torch.device: torch.device,
            torch._C._nn._parse_to: torch._C._nn._parse_to,
        }

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        places = self._places
        caller, places.caller = places.caller, (args, kwargs) if kwargs else args
        try:
            own = self._own.get(func)
            if own is not None:
                return own(*args, **(kwargs or {}))
            if not kwargs:
                return func(*args)
            device = kwargs.get("device")
            if device is None:
                return func(*args, **kwargs)
            with places.making(named_device(device) or GPU):
                return func(*args, **{**kwargs, "device": on_cpu(device)})
        finally:
            places.caller = caller

    def _to(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Move or cast: `to(device, dtype)`, `to(dtype)` or `to(other)`, each with settings."""
        if args and isinstance(args[0], torch.Tensor):
            other = args[0]
            return self._places.move(tensor, self._device(other), other.dtype)
        device = kwargs.pop("device", None)
        dtype = kwargs.pop("dtype", None)
        if args and not isinstance(args[0], torch.dtype):
            device, *args = args  # type: ignore[assignment]
        if args:
            dtype, *args = args  # type: ignore[assignment]
        # What may follow by position: non_blocking and copy.
        kwargs = dict(zip(("non_blocking", "copy"), args, strict=False)) | kwargs
        named = named_device(device)
        if named is None or named.type not in (GPU.type, "cpu"):
            return tensor.to(device, dtype, **kwargs)
        return self._places.move(tensor, named, dtype, **kwargs)

    def _to_gpu(self, tensor: torch.Tensor, *_: Any, **kwargs: Any) -> torch.Tensor:
        return self._places.move(tensor, GPU, None)

    def _to_host(self, tensor: torch.Tensor, *_: Any, **kwargs: Any) -> torch.Tensor:
        return self._places.move(tensor, torch.device("cpu"), None)

    def _numpy(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self._is_cuda(tensor):
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory "
                "first."
            )
        return tensor.numpy(*args, **kwargs)

    def _device(self, tensor: torch.Tensor, *_: Any) -> torch.device:
        return self._places.device_of(tensor, tensor.device)

    def _is_cuda(self, tensor: torch.Tensor, *_: Any) -> bool:
        return self._device(tensor).type == GPU.type

    def _is_cpu(self, tensor: torch.Tensor, *_: Any) -> bool:
        return self._device(tensor).type == "cpu"

    def _get_device(self, tensor: torch.Tensor) -> int:
        device = self._device(tensor)
        return -1 if device.index is None else device.index

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


def _device_in(places: Places) -> property:
    """Return what `FakeTensor.device` is outside of torch's own functions; of all other tensors the mode is asked."""
    told = vars(FakeTensor)["device"].fget

    def device(tensor: FakeTensor) -> torch.device:
        device = told(tensor)
        return places.device_of(tensor, device) if torch._C._is_torch_function_mode_enabled() else device

    return property(device)


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


def _itself(tensor: torch.Tensor, *_: Any, **kwargs: Any) -> torch.Tensor:
    return tensor
