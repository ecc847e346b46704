"""What `.numpy()` and `.tolist()` give in a trace: the right shape on the host, and values that nobody knows.

Predictions that an evaluation collects cost the GPU nothing, so they may be kept and reckoned with. Whoever asks for a
value is refused.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from brim.tracing.unknown import UNKNOWN, UnknownNumber, has_unknown, is_true, refuse

# Functions of NumPy whose results are as long as values say, or are answers about values.
_ASK = frozenset(
    (
        *("allclose", "array_equal", "array_equiv", "argwhere", "flatnonzero", "nonzero", "compress", "extract"),
        *("unique", "unique_all", "unique_counts", "unique_inverse", "unique_values", "bincount", "trim_zeros"),
        *("intersect1d", "setdiff1d", "setxor1d", "union1d", "histogram_bin_edges"),
    )
)
_FROM_NUMPY = torch.from_numpy
# What makes plain arrays of others, and what is asked of losses in a list.
_MAKE = ("array", "asarray", "ascontiguousarray")
_OF_LISTS = (
    *("mean", "median", "std", "var", "sum", "prod", "min", "max", "amin", "amax", "average", "percentile", "quantile"),
    *("nanmean", "nanmedian", "nanstd", "nansum", "nanmin", "nanmax", "round", "clip", "stack", "concatenate"),
)


@contextmanager
def arrays_of_trace() -> Iterator[None]:
    """Let fake tensors become arrays and lists in the block."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(FakeTensor, "numpy", _numpy, create=True))
        stack.enter_context(mock.patch.object(FakeTensor, "tolist", _tolist, create=True))
        stack.enter_context(mock.patch.object(torch, "from_numpy", _tensor_of))
        try:
            numpy = importlib.import_module("numpy")
        except ImportError:
            numpy = None
        if numpy is not None:
            for name in _MAKE:
                make = _keeping_unknown(without_values(getattr(numpy, name)))
                stack.enter_context(mock.patch.object(numpy, name, make))
            for name in _OF_LISTS:
                stack.enter_context(mock.patch.object(numpy, name, without_values(getattr(numpy, name))))
            stack.enter_context(mock.patch.object(numpy, "repeat", _repeating(numpy.repeat)))
        yield


def _tensor_of(array: Any) -> torch.Tensor:
    """Return what `torch.from_numpy` does, of an array without values a tensor without."""
    return torch.tensor(array) if _is_unknown(array) else _FROM_NUMPY(array)


def _repeating(repeat: Callable[..., Any]) -> Callable[..., Any]:
    """Return NumPy's own, which looks at the array alone, and not at how often its values are repeated."""

    @functools.wraps(repeat)
    def repeated(a: Any, repeats: Any, axis: Any = None) -> Any:
        return refuse() if _is_unknown(repeats) else repeat(a, repeats, axis)

    return repeated


def _keeping_unknown(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes an array, of one without values another such."""

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        array, of = make(*args, **kwargs), next(iter((*args, *kwargs.values())))
        is_fake = isinstance(of, FakeTensor) and of.constant is None
        return array.view(_array_class()) if is_fake or _is_unknown(of) else array

    return made


def without_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of NumPy that gives arrays without values for numbers and arrays without."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        is_unknown = has_unknown((*args, *kwargs.values()))
        return _call_on_plain(function, args, kwargs) if is_unknown else function(*args, **kwargs)

    return call


def _call_on_plain(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return _unknown(function(*_plain(args), **{name: _plain(value) for name, value in kwargs.items()}))


def _numpy(tensor: FakeTensor, *, force: bool = False) -> Any:
    """Return what `Tensor.numpy` would but for the values, and refuse what it refuses."""
    if tensor.is_cuda and not force:
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory "
            "first."
        )
    if tensor.requires_grad and not force:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        if tensor.constant is not None:
            return tensor.constant.detach().numpy()
        dtype = torch.empty(0, dtype=tensor.dtype).numpy().dtype  # of bfloat16 there is none, as torch says
    numpy = importlib.import_module("numpy")
    return numpy.zeros(tuple(tensor.shape), dtype).view(_array_class())


def _tolist(tensor: FakeTensor) -> Any:
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        if tensor.constant is not None:
            return tensor.constant.tolist()
    return _nested(tuple(tensor.shape))


def _nested(shape: tuple[int, ...]) -> Any:
    """Return lists in lists, in which one unknown number stands for all."""
    nested: Any = UnknownNumber()
    for length in reversed(shape):
        nested = [nested] * length if not isinstance(nested, list) else [list(nested) for _ in range(length)]
    return nested


@functools.cache
def _array_class() -> Any:
    """Return a kind of array that gives others like it, and refuses to be asked; NumPy may not be there before."""
    numpy = importlib.import_module("numpy")

    class UnknownArray(numpy.ndarray):  # type: ignore[misc, name-defined]
        """An array without values."""

        is_unknown = True
        __int__ = __float__ = __index__ = __complex__ = __contains__ = refuse
        __bool__ = is_true
        nonzero = compress = refuse

        def __array_function__(
            self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
        ) -> Any:
            if _asks(func.__name__, (*args, *kwargs.values())):
                refuse()
            return _call_on_plain(func, args, kwargs)

        def __getitem__(self, key: Any) -> Any:
            if any(_is_mask(each) for each in (key if isinstance(key, tuple) else (key,))):
                refuse()
            found = super().__getitem__(key)
            return found if isinstance(found, numpy.ndarray) else numpy.asarray(found).view(type(self))

        def __iter__(self) -> Iterator[Any]:
            return (self[index] for index in range(len(self)))

        def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
            return _unknown(array)

        def __repr__(self) -> str:
            return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype})"

        def __str__(self) -> str:
            return repr(self) if self.ndim else str(UnknownNumber())

        def __format__(self, spec: str) -> str:
            return format(UnknownNumber(), spec)

        def __round__(self, num_digits: Any = None) -> Any:
            return UnknownNumber()

        def repeat(self, repeats: Any, axis: Any = None) -> Any:
            return refuse() if _is_unknown(repeats) else _unknown(super().repeat(repeats, axis))

        def item(self, *_: Any) -> Any:
            return UnknownNumber()

        def tolist(self) -> Any:
            return _nested(self.shape)

    UNKNOWN.add(UnknownArray)
    return UnknownArray


def _unknown(result: Any) -> Any:
    """Return what a function of NumPy gave without its values; a mask takes all, where known arrays are asked by it."""
    numpy = importlib.import_module("numpy")
    if isinstance(result, (tuple, list)):
        parts = [_unknown(each) for each in result]
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
    if not isinstance(result, (numpy.ndarray, numpy.generic)):
        return result
    array = numpy.asarray(result).view(_array_class())
    if array.dtype == bool:
        array.fill(True)
    return array


def _plain(value: Any) -> Any:
    """Return arguments with plain arrays and numbers instead of those without values, so that NumPy may ask them."""
    if isinstance(value, UnknownNumber):
        return 1.0
    if isinstance(value, (tuple, list)):
        return type(value)(_plain(each) for each in value)
    return value.view(importlib.import_module("numpy").ndarray) if _is_unknown(value) else value


def _asks(name: str, args: tuple[Any, ...]) -> bool:
    """Return whether a function of NumPy asks for values of these arguments."""
    if name == "where":
        return len(args) == 1
    if name == "delete":
        return _is_unknown(args[1])
    return name in _ASK


def _is_mask(key: Any) -> bool:
    return _is_unknown(key) and key.dtype == bool


def _is_unknown(value: Any) -> bool:
    """Return whether a value is an array without values."""
    return getattr(type(value), "is_unknown", False)
