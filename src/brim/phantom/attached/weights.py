"""Inside a job on phantoms: what would only be copied to the device costs nothing on the host.

Weights are made on the CPU, filled with random numbers or read from a checkpoint, and moved. On a phantom their values
matter to nobody. So large tensors of floats are neither filled nor copied to each other: no page of theirs is touched.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
import zipfile
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch

from brim.phantom.attached.operations import Operations, Original
from brim.phantom.attached.values import is_plain

# Smaller tensors are filled and copied as they are: biases, norms, inputs.
SMALLEST_BYTES = 1 << 20
# Any number is as random as another; these need none of those that were there.
_RANDOM = ("normal_", "uniform_", "exponential_", "log_normal_", "cauchy_", "bernoulli_")
# What initialisations go on with, in place.
_IN_PLACE = ("mul_", "add_", "sub_", "div_", "erfinv_", "clamp_", "clamp_min_", "clamp_max_", "neg_", "sqrt_")
# Initialisations that reject numbers, or solve for them.
_LABORIOUS = ("trunc_normal_", "orthogonal_")
_MMAP_THRESHOLD = -3  # glibc's M_MMAP_THRESHOLD


class Weights:
    """Leaves out what fills and copies large tensors of floats on the host."""

    def __init__(self) -> None:
        # Addresses of tensors without values, each with a sign of life of its memory.
        self._empty: dict[int, weakref.ref[Any]] = {}
        libc = ctypes.CDLL(None)
        self._mmap = libc.mmap
        self._mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        self._mmap.restype = ctypes.c_void_p
        libc.mallopt(_MMAP_THRESHOLD, SMALLEST_BYTES)  # each has a mapping of its own, which is zeros at first

    def attach(self, operations: Operations) -> None:
        """See what fills tensors, and make checkpoints lie in the file until they are read."""
        for name in _RANDOM:
            operations.add(name, self._draw)
        for name in _IN_PLACE:
            operations.add(name, self._change)
        operations.add("zero_.default", self._clear)
        operations.add("copy_.default", self._copy)
        torch.load = _lazily(torch.load)
        for name in _LABORIOUS:
            setattr(torch.nn.init, name, _drawn_at_once(getattr(torch.nn.init, name)))

    def _draw(self, operation: Any, original: Original, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if not _is_large(args[0]):
            return original()
        self._note(args[0])
        return args[0]

    def _change(self, operation: Any, original: Original, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return args[0] if _is_large(args[0]) and self._has_no_values(args[0]) else original()

    def _clear(self, operation: Any, original: Original, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        if not _is_large(tensor) or not tensor.is_contiguous() or tensor.is_shared() or tensor.is_pinned():
            return original()
        start, end = tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.itemsize
        first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        ctypes.memset(start, 0, first - start)
        ctypes.memset(last, 0, end - last)
        # New pages in the place of the old ones, which read as zeros without being there.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10 | 0x4000  # MAP_FIXED, MAP_NORESERVE
        found = self._mmap(first, last - first, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        return tensor if found == first else original()

    def _copy(self, operation: Any, original: Original, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        to, source = args[:2]
        if not (_is_large(to) and _is_large(source)):
            return original()
        if self._has_no_values(source):
            self._note(to)
        elif not self._has_no_values(to):
            return original()
        return to

    def _note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self._empty[storage.data_ptr()] = weakref.ref(storage, self._forget(storage.data_ptr()))

    def _forget(self, address: int) -> Callable[[Any], None]:
        def forget(reference: Any) -> None:
            if self._empty.get(address) is reference:
                del self._empty[address]

        return forget

    def _has_no_values(self, tensor: torch.Tensor) -> bool:
        storage = tensor.untyped_storage()
        reference = self._empty.get(storage.data_ptr())
        return reference is not None and reference() is not None


def _is_large(value: Any) -> bool:
    return (
        is_plain(value)
        and value.device.type == "cpu"
        and value.dtype.is_floating_point
        and value.numel() * value.itemsize >= SMALLEST_BYTES
    )


def _drawn_at_once(initialise: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return an initialisation that draws large tensors of the host in one go."""

    @wraps(initialise)
    def draw(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not _is_large(tensor):
            return initialise(tensor, *args, **kwargs)
        with torch.no_grad():
            return tensor.normal_()

    return draw


def _lazily(load: Callable[..., Any]) -> Callable[..., Any]:
    """Return `torch.load` that leaves tensors in the file where it can."""

    @wraps(load)
    def load_lazily(f: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("mmap") is None and isinstance(f, (str, os.PathLike)) and zipfile.is_zipfile(f):
            kwargs["mmap"] = True
        return load(f, *args, **kwargs)

    return load_lazily
