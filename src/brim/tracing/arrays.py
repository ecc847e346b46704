"""What `.numpy()` and `.tolist()` give in a trace: the right shape on the host, and values that nobody knows.

Predictions that an evaluation collects cost the GPU nothing, so they may be kept and reckoned with. Whoever asks for a
value is refused.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from brim.tracing.unknown import UnknownNumber, refuse


@contextmanager
def arrays_of_trace() -> Iterator[None]:
    """Let fake tensors become arrays and lists in the block."""
    with (
        mock.patch.object(FakeTensor, "numpy", _numpy, create=True),
        mock.patch.object(FakeTensor, "tolist", _tolist, create=True),
    ):
        yield


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
        __bool__ = __int__ = __float__ = __index__ = __complex__ = refuse

        def __getitem__(self, key: Any) -> Any:
            found = super().__getitem__(key)
            return found if isinstance(found, numpy.ndarray) else numpy.asarray(found).view(type(self))

        def __iter__(self) -> Iterator[Any]:
            return (self[index] for index in range(len(self)))

        def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
            return array.view(type(self))

        def __repr__(self) -> str:
            return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype})"

        def __format__(self, spec: str) -> str:
            return format(UnknownNumber(), spec)

        def item(self, *_: Any) -> Any:
            return UnknownNumber()

        def tolist(self) -> Any:
            return _nested(self.shape)

    return UnknownArray
