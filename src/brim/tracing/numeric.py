"""What Python's own functions give for numbers that a trace does not know: another such number.

None of them says which way to go, but some read a number past Python's methods, and others refuse what is no number.
"""

from __future__ import annotations

import ast
import builtins
import functools
import linecache
import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor

from brim.tracing.unknown import UnknownNumber

_LIBRARY = {
    math: "exp expm1 log log2 log10 log1p sqrt pow fabs fsum isclose",
    statistics: "mean fmean",
}


@contextmanager
def numbers_kept_unknown(module: ModuleType | None) -> Iterator[None]:
    """Let unknown numbers stay unknown in the block, whatever is called on them.

    Args:
        module: That of the workload, in which `float(loss)` is as good as `loss.item()`, and `int(…)`, `min(…)` too.
    """
    own = {} if module is None else vars(module)
    imported = {name: _OF_LIBRARY[value] for name, value in own.items() if callable(value) and _is_of_library(value)}
    called = {name: _NUMERIC[name] for name in _only_called(module)} if module is not None else {}
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(own, {**called, **imported}))
        for library, names in _LIBRARY.items():
            for name in names.split():
                stack.enter_context(mock.patch.object(library, name, _OF_LIBRARY[getattr(library, name)]))
        yield


def _keeping_unknown(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does what another does, and of unknown numbers gives another."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        is_one = len(args) == 1 and (isinstance(args[0], (str, bytes, torch.Tensor)) or _is_unknown(args[0]))
        if len(args) == 1 and isinstance(args[0], Iterable) and not is_one:
            args = (list(args[0]),)
        values = args[0] if args and isinstance(args[0], list) else args
        if function in (min, max) and (unknown := [value for value in values if _is_unknown(value)]):
            return unknown[0]  # of two losses either is as good
        if any(isinstance(value, UnknownNumber) or _is_unknown(value) for value in values):
            return UnknownNumber()
        return function(*args, **kwargs)

    return call


def _is_unknown(value: Any) -> bool:
    """Return whether something is a tensor or an array of one number whose value is unknown."""
    if isinstance(value, FakeTensor):
        return value.constant is None and value.numel() == 1
    return getattr(type(value), "is_unknown", False) and value.size == 1


# What people call on losses and counts.
_NUMERIC = {name: _keeping_unknown(getattr(builtins, name)) for name in ("float", "int", "min", "max")}
_OF_LIBRARY = {
    getattr(library, name): _keeping_unknown(getattr(library, name))
    for library, names in _LIBRARY.items()
    for name in names.split()
}


def _is_of_library(value: Any) -> bool:
    return getattr(value, "__module__", None) in ("math", "statistics") and value in _OF_LIBRARY


@functools.cache
def _only_called(module: ModuleType) -> frozenset[str]:
    """Return which of Python's functions a module calls alone, and does not use as types, keys or its own names."""
    nodes = list(ast.walk(ast.parse("".join(linecache.getlines(getattr(module, "__file__", None) or "")))))
    # Those of functions inside of functions are looked up when these run.
    inner = {
        id(part) for node in nodes if isinstance(node, ast.FunctionDef) for each in node.body for part in ast.walk(each)
    }
    outer = [node for node in nodes if id(node) not in inner]
    annotations = [getattr(node, name, None) for node in outer for name in ("annotation", "returns")]
    harmless = {id(part) for each in annotations if each is not None for part in ast.walk(each)}
    harmless |= {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    otherwise = {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in harmless}
    return frozenset(_NUMERIC) - otherwise - set(vars(module))
