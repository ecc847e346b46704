"""What modules keep besides parameters and buffers: counts, lists, states of metrics. Put back, each in its place."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Sequence
from operator import is_
from types import NoneType
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

# Values that nothing can change, of which most attributes are.
_VALUES = frozenset(
    {bool, int, float, complex, str, bytes, range, NoneType, torch.dtype, torch.device, torch.Size, torch.layout}
)
# A subclass may do anything when it is cleared and filled, so these and no others.
_CONTAINERS = frozenset({list, deque, set, dict, OrderedDict, defaultdict, Counter})
# What has a state of its own that is put back elsewhere, and data, which training reads and which may be large.
_LEFT_ALONE = (nn.Module, torch.optim.Optimizer, Dataset)
_MISSING = object()


class Attributes:
    """The attributes of modules and what these hold, down to the numbers in tensors and arrays.

    Lists, dictionaries, sets, deques and tuples are followed, and objects that hold nothing but those and plain values,
    as a running average does. Anything else, such as a trainer, a logger, a lock or an iterator, stays the same object
    and keeps the state that it has come to: what it leads to may be the whole process.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._namespaces: list[tuple[Any, type, dict[str, Any]]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._tensors: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._arrays: list[tuple[Any, Any]] = []
        # Parameters and buffers are kept with their modules, once.
        self._seen = {id(tensor) for module in modules for tensor in _registered(module)}
        waiting: list[Any] = []
        for module in modules:
            waiting += self._keep_namespace(module, vars(module))
        while waiting:
            value = waiting.pop()
            if id(value) not in self._seen:
                self._seen.add(id(value))
                waiting += self._keep(value)

    def restore(self) -> None:
        """Put everything back in place: a list that others refer to as well is the same list, with its old items."""
        for owner, kind, saved in self._namespaces:
            if type(owner) is not kind:  # lazy modules and parametrized ones change theirs
                owner.__class__ = kind
            _put_back_names(vars(owner), saved)
        for container, items in self._containers:
            if not _holds_the_same(container, items):
                _refill(container, items)
        for tensor, contents in self._tensors:
            _put_back_numbers(tensor, contents)
        for array, contents in self._arrays:
            if array.shape == contents.shape and not (array == contents).all():
                array[...] = contents

    def _keep(self, value: Any) -> Iterable[Any]:
        """Keep what a value holds; return what is to be followed from it."""
        kind = type(value)
        if kind in _CONTAINERS:
            items = value.copy()
            self._containers.append((value, items))
            return _changeable(items.values() if isinstance(items, dict) else items)
        if issubclass(kind, tuple):
            return _changeable(value)
        if issubclass(kind, torch.Tensor):
            if _has_numbers(value):
                self._tensors.append((value, value.detach().to("cpu", copy=True)))
        elif _is_array(value):
            if value.flags.writeable and not value.dtype.hasobject:
                self._arrays.append((value, value.copy()))
        elif (names := _plain_namespace(value)) is not None:
            return self._keep_namespace(value, names)
        return ()

    def _keep_namespace(self, owner: Any, names: dict[str, Any]) -> list[Any]:
        saved = dict(names)
        self._namespaces.append((owner, type(owner), saved))
        return _changeable(saved.values())


def _registered(module: nn.Module) -> list[torch.Tensor]:
    return [tensor for held in (module._parameters, module._buffers) for tensor in held.values() if tensor is not None]


def _changeable(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if type(value) not in _VALUES]


def _has_numbers(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's numbers are kept; those of a graph's results are not, nothing writes to them."""
    is_plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided
    return is_plain and tensor.grad_fn is None and not tensor.is_meta


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray


def _plain_namespace(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object that has nothing but plain ones; else None."""
    kind = type(value)
    if issubclass(kind, _LEFT_ALONE):
        return None
    try:
        names = object.__getattribute__(value, "__dict__")  # not `vars`: a proxy may do anything when asked
    except AttributeError:
        return None
    if type(names) is not dict:  # that of a class
        return None
    for each in names.values():
        held = type(each)
        if not (held in _VALUES or held in _CONTAINERS or issubclass(held, (tuple, torch.Tensor)) or _is_array(each)):
            return None
    return names


def _put_back_names(names: dict[str, Any], saved: dict[str, Any]) -> None:
    for name in [name for name in names if name not in saved]:
        del names[name]
    for name, value in saved.items():
        if names.get(name, _MISSING) is not value:
            names[name] = value


def _holds_the_same(container: Any, items: Any) -> bool:
    """Return whether a container holds the very objects; compared with `is`, since tensors have no other answer."""
    if len(container) != len(items) or isinstance(items, set):
        return False  # a set has no order to compare in
    if isinstance(items, dict):
        return all(map(is_, container, items)) and all(map(is_, container.values(), items.values()))
    return all(map(is_, container, items))


def _refill(container: Any, items: Any) -> None:
    container.clear()
    if isinstance(items, (list, deque)):
        container.extend(items)
    else:
        container.update(items)


def _put_back_numbers(tensor: torch.Tensor, contents: torch.Tensor) -> None:
    # Only where they differ: one that is expanded, or that a file lies behind, may not be written to.
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        if (tensor.shape, tensor.dtype) != (contents.shape, contents.dtype):
            tensor.data = contents.to(tensor.device)
        elif not torch.equal(tensor.detach().to("cpu"), contents):
            tensor.copy_(contents)
