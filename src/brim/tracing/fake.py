"""Fake tensors: sizes and lifetimes without memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.graph import _engine_run_backward, saved_tensors_hooks
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import _disable_current_modes

from brim.tracing import masks, slices
from brim.tracing.unknown import CONCERNED, Values, forget, has_unknown

# Up to this many elements, what is made on the host keeps its values: libraries ask for them.
_KNOWN_ELEMENTS = 4096
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_LINEAR = F.linear
_MATRIX_DIMS = 2
_FACTORIES = frozenset(
    (
        torch.arange,
        torch.full,
        torch.linspace,
        torch.logspace,
        torch.ones,
        torch.rand,
        torch.randint,
        torch.randn,
        torch.tensor,
        torch.zeros,
    )
)


@contextmanager
def fake_tensors(values: Values | None = None, *, on_cuda: bool = False) -> Iterator[FakeTensorMode]:
    """Make every tensor that is created in the block a fake one, and let modules be moved as usual.

    Args:
        values: Answers questions about their values.
        on_cuda: Whether the workload runs on a GPU, so that a tensor made on the CPU by name is no part of it.
    """
    with (
        mock.patch.object(torch.utils, "swap_tensors", _take_data),
        mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", _KNOWN_ELEMENTS),
        # It draws again while values are out of bounds, and values are nobody's business here.
        mock.patch.object(nn.init, "_no_grad_trunc_normal_", _leave),
        mock.patch.object(F, "linear", _linear),
        # What fails is told by whoever traces.
        mock.patch.object(fake_tensor.log, "disabled", new=True),
        # A copy of a module's tensors would copy their mode too, and every view of a stranger's tensor is a new one.
        mock.patch.object(FakeTensorMode, "__deepcopy__", _itself, create=True),
        FakeTensorMode(allow_non_fake_inputs=True) as mode,
        _KnownValues(mode, values or Values(), on_cuda=on_cuda),
    ):
        yield mode


@contextmanager
def modes_in_autograd() -> Iterator[None]:
    """Let the function modes of now see what Python does inside of autograd: checkpoints that run again, hooks.

    A mode is off while a function that it handles runs, and so is the user's code that such a function calls.
    """
    modes = _get_current_function_mode_stack()
    hooks = saved_tensors_hooks.__init__

    def with_modes(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with ExitStack() as stack:
                current = _get_current_function_mode_stack()
                for mode in modes:
                    if mode not in current:
                        stack.enter_context(mode)
                return function(*args, **kwargs)

        return run

    def init(self: Any, pack_hook: Callable[..., Any], unpack_hook: Callable[..., Any]) -> None:
        hooks(self, with_modes(pack_hook), with_modes(unpack_hook))

    run_backward = with_modes(_engine_run_backward)
    with (
        mock.patch.object(torch.autograd, "_engine_run_backward", run_backward),
        mock.patch.object(saved_tensors_hooks, "__init__", init),
    ):
        yield


class _KnownValues(TorchFunctionMode):
    """Answers questions about values: small tensors on the host are made for real, of others little is known."""

    def __init__(self, mode: FakeTensorMode, values: Values, *, on_cuda: bool) -> None:
        super().__init__()
        self._mode = mode
        self._values = values
        self._host_devices = (None, "cpu", torch.device("cpu")) if on_cuda else (None,)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if torch._C._get_dispatch_mode(_FAKE) is None:  # a workload is built for real
            return func(*args, **kwargs)
        if func is torch.Tensor.__deepcopy__ and isinstance(args[0], FakeTensor):
            return _deep_copy(*args)
        if func in slices.CONCERNED:
            result = slices.cut(func, *args)
            if result is not NotImplemented:
                return result
        if func in CONCERNED:
            result = self._values.answer(func, args, kwargs)
            return func(*args, **kwargs) if result is NotImplemented else result
        result = self._make(func, args, kwargs)
        if has_unknown(args):  # what is made of it is unknown, and what it is written to
            forget(args[0] if result is None else result)
        return masks.noted(result) if masks.makes_ones(func, args, kwargs) else result

    def _make(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a function, and keep the values of what it makes where that is small and on the host."""
        if func not in _FACTORIES or kwargs.get("device") not in self._host_devices:
            return func(*args, **kwargs)
        if not _is_small(func, args, kwargs):
            return func(*args, **kwargs)
        with _disable_current_modes():
            real = func(*args, **kwargs)
            meta = torch.empty(real.shape, dtype=real.dtype, device="meta")
        if real.numel() > _KNOWN_ELEMENTS or real.device.type != "cpu":
            return func(*args, **kwargs)
        converter = self._mode.fake_tensor_converter
        if real.requires_grad:
            return converter.from_real_tensor(self._mode, real, make_constant=True)
        # The same without a look at all that a tensor may be: every BatchNorm has one of these.
        fake = FakeTensor(self._mode, meta, real.device, constant=real)
        converter.add_constant_storage_mapping(fake)
        return fake


def _deep_copy(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
    """Copy a fake tensor, which torch's own way would ask for its memory; known values stay known."""
    if id(tensor) in memo:
        return memo[id(tensor)]
    if not tensor.is_leaf:
        raise RuntimeError("Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol")
    copied: torch.Tensor = tensor.detach().clone()
    if isinstance(tensor, nn.Parameter):
        copied = nn.Parameter(copied, requires_grad=tensor.requires_grad)
    else:
        copied.requires_grad_(tensor.requires_grad)
    memo[id(tensor)] = copied
    if tensor.grad is not None:
        copied.grad = _deep_copy(tensor.grad, memo)
    return copied


def _is_small(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether it is plain to see that a factory makes few elements."""
    if any(isinstance(value, torch.Tensor) for value in (*args, *kwargs.values())) or "out" in kwargs:
        return False
    if func is torch.tensor:
        return not kwargs.get("requires_grad")
    if func in (torch.arange, torch.linspace, torch.logspace):
        return all(abs(value) <= _KNOWN_ELEMENTS for value in args if isinstance(value, (int, float)))
    positional = {torch.full: args[:1], torch.randint: args[-1:]}.get(func, args)
    size = kwargs.get("size", positional)
    while len(size) == 1 and isinstance(size[0], (tuple, list)):
        size = size[0]
    return all(isinstance(length, int) for length in size) and math.prod(size) <= _KNOWN_ELEMENTS


def _leave(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    return tensor


def _linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Add the bias in place where real tensors would, and fakes would not.

    Source: `linear` in torch's aten/src/ATen/native/Linear.cpp.
    """
    is_one_product = inputs.dim() == _MATRIX_DIMS or inputs.is_contiguous()
    if bias is None or is_one_product or torch.is_autocast_enabled("cpu"):
        return _LINEAR(inputs, weight, bias)
    return torch.matmul(inputs, weight.t()).add_(bias)


def _itself(mode: FakeTensorMode, memo: Mapping[int, Any]) -> FakeTensorMode:
    return mode


def _take_data(target: torch.Tensor, source: torch.Tensor) -> None:
    """Do what `Module.to` needs of `swap_tensors`, which refuses fake tensors because their mode refers to them."""
    target.data = source.data
    if isinstance(target, FakeTensor):
        # A tensor whose values are known is asked for them first, so they have to follow.
        target.constant = getattr(source, "constant", None)
