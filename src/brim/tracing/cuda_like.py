"""A trace on a CPU-only torch that behaves as the job would on CUDA.

The tensors are fake and live on the CPU. What differs between the two devices and shows in memory is imposed: where
tensors go, which attention kernel runs, what dropout keeps, which optimizers work on all parameters at once, what
autocast casts.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import _meta_registrations
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _device

from brim.tracing import fast_path, packing, recurrence
from brim.tracing.attention import attend
from brim.tracing.autocast import cuda_autocast_policy
from brim.tracing.gpu_questions import GpuAnswers, gpu_that_answers
from brim.tracing.places import GPU, AllOnGpu, Places, named_device, on_cpu

_ATTENTION = F.scaled_dot_product_attention


@contextmanager
def as_on_cuda(capability: tuple[int, int], places: Places) -> Iterator[GpuAnswers]:
    """Let what runs in the block behave as on a GPU of this compute capability.

    Args:
        capability: The compute capability.
        places: Is told what goes to the GPU.
    """
    with ExitStack() as stack:
        stack.enter_context(cuda_autocast_policy(is_host_apart=not isinstance(places, AllOnGpu)))
        stack.enter_context(_no_flex_attention())
        answers = stack.enter_context(gpu_that_answers(capability))
        stack.enter_context(_cuda_dropout())
        stack.enter_context(fast_path.taken_as_without_modes())
        for module in [module for name, module in sys.modules.items() if name.startswith("torch.optim.")]:
            if hasattr(module, "_default_to_fused_or_foreach"):
                stack.enter_context(mock.patch.object(module, "_default_to_fused_or_foreach", _default_to_foreach))
        functions = _CudaFunctions(capability, places)
        # Inside another function of torch the mode is not asked, so attention is replaced by name as well.
        stack.enter_context(mock.patch.object(F, "scaled_dot_product_attention", functions.attend))
        stack.enter_context(mock.patch.object(FakeTensor, "device", _device_in(places)))
        # Shapes that differ between devices are asked for by this name.
        hint = partial(_kernels_of, _meta_registrations.device_hint, places)
        stack.enter_context(mock.patch.object(_meta_registrations, "device_hint", hint))
        stack.enter_context(recurrence.weights_in_one_buffer(places.has))
        stack.enter_context(functions)
        yield answers


@contextmanager
def _no_flex_attention() -> Iterator[None]:
    """Refuse what would end the process where torch is built without CUDA."""

    def refuse(*_: Any) -> None:
        raise NotImplementedError(
            "FlexAttention is not traced. Predict with F.scaled_dot_product_attention, in transformers "
            "attn_implementation='sdpa'"
        )

    try:
        module = importlib.import_module("torch.nn.attention.flex_attention")
    except ModuleNotFoundError:  # torch 2.4 has none
        yield
        return
    with mock.patch.object(module, "_validate_no_nested_tensors", refuse, create=True):
        yield


def _binary_cross_entropy(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Refuse what CUDA's autocast refuses: probabilities in half precision are too rough for it."""
    if torch.is_autocast_enabled("cpu"):
        raise RuntimeError(
            "binary_cross_entropy and BCELoss are unsafe to autocast on CUDA: use binary_cross_entropy_with_logits"
        )
    return F.binary_cross_entropy(*args, **kwargs)


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


@contextmanager
def default_device_kept() -> Iterator[None]:
    """Undo what a workload says of torch's default device."""
    before = _device.CURRENT_DEVICE
    try:
        yield
    finally:
        if before != _device.CURRENT_DEVICE:
            torch.set_default_device(before)


class _CudaFunctions(TorchFunctionMode):
    """Sends what is meant for CUDA to the CPU and notes that it is there, and attention to CUDA's kernels."""

    def __init__(self, capability: tuple[int, int], places: Places) -> None:
        super().__init__()
        self._capability = capability
        self._places = places
        # What is treated apart whatever its arguments; most calls are none of these, and there are thousands.
        self._own: dict[Any, Callable[..., Any]] = {
            **packing.FUNCTIONS,
            **recurrence.FUNCTIONS,
            **fast_path.functions(self.attend),
            _ATTENTION: self.attend,
            F.binary_cross_entropy: _binary_cross_entropy,
            torch.Tensor.to: self._to,
            torch.Tensor.cuda: self._to_gpu,
            torch.Tensor.cpu: self._to_host,
            torch.Tensor.pin_memory: _itself,
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
            device = kwargs.get("device") if kwargs else None
            if device is None and _device.CURRENT_DEVICE is not None and func in _device._device_constructors():
                device = _device.CURRENT_DEVICE  # which torch looks at only after this
            if device is None:
                return func(*args, **(kwargs or {}))
            with places.making(named_device(device) or GPU):
                return func(*args, **{**(kwargs or {}), "device": on_cpu(device)})
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

    def _device(self, tensor: torch.Tensor, *_: Any) -> torch.device:
        return self._places.device_of(tensor, tensor.device)

    def _is_cuda(self, tensor: torch.Tensor, *_: Any) -> bool:
        return self._device(tensor).type == GPU.type

    def _is_cpu(self, tensor: torch.Tensor, *_: Any) -> bool:
        return self._device(tensor).type == "cpu"

    def _get_device(self, tensor: torch.Tensor) -> int:
        device = self._device(tensor)
        return -1 if device.index is None else device.index

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Attend with the kernel that CUDA would pick, on what autocast makes of the arguments."""
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            kwargs = {name: _cast_mask(each, dtype) for name, each in kwargs.items()}
            args = tuple(_cast_mask(each, dtype) for each in args)
            value, key, query = (each.to(dtype) for each in (value, key, query))
        return attend(query, key, value, *args, **kwargs, capability=self._capability)


def _device_in(places: Places) -> property:
    """Return what `FakeTensor.device` is outside of torch's own functions; of all other tensors the mode is asked."""
    told = vars(FakeTensor)["device"].fget

    def device(tensor: FakeTensor) -> torch.device:
        device = told(tensor)
        return places.device_of(tensor, device) if torch._C._is_torch_function_mode_enabled() else device

    return property(device)


def _kernels_of(told: Callable[[Any], str], places: Places, tensor: Any) -> str:
    """Return whose kernels run on a tensor, given what torch says."""
    return GPU.type if isinstance(tensor, torch.Tensor) and places.has(tensor) else told(tensor)


def _cast_mask(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _itself(tensor: torch.Tensor, *_: Any, **kwargs: Any) -> torch.Tensor:
    return tensor
