"""Values that a trace does not have: what may be done with them all the same.

A number that a step only prints, keeps or reckons with has no say in memory, so it may be anything. A step that asks
about it could take either way, which is refused. Only two questions have an answer in a job that is to run: its numbers
are finite, and its checks hold.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor

_NUMBER_OF = torch.ops.aten._local_scalar_dense.default
_ARITHMETIC = "add radd sub rsub mul rmul truediv rtruediv pow rpow mod rmod neg pos abs"
_QUESTIONS = "eq ne bool int float trunc floor ceil floordiv rfloordiv divmod rdivmod"
_COMPARISONS = "lt le gt ge"
# Optimizers that keep a number within bounds and only reckon with it.
_OPTIMIZERS = ("torch.optim._adafactor", "torch.optim.asgd")
# Functions that ask whether numbers are finite, and what `torch._check_tensor_all` asks, each with its answer where all
# is well.
_ALL_IS_WELL: Mapping[Any, bool] = {
    torch.isnan: False,
    torch.Tensor.isnan: False,
    torch.isinf: False,
    torch.Tensor.isinf: False,
    torch.isfinite: True,
    torch.Tensor.isfinite: True,
    torch.Tensor._is_all_true: True,
}
_KEEP_THE_ANSWER = (torch.any, torch.Tensor.any, torch.all, torch.Tensor.all)
_ASK = (torch.Tensor.__bool__, torch.Tensor.item)
# The functions that `answer` is to be asked about.
CONCERNED = frozenset((*_ALL_IS_WELL, *_KEEP_THE_ANSWER, *_ASK))


class UnknownNumber(float):
    """A float that is printed as `nan`, gives others like it in arithmetic, and refuses to be asked about.

    >>> f"loss {UnknownNumber() / 2:.3f}"
    'loss nan'
    """

    def __new__(cls) -> UnknownNumber:
        """Make one; what reads it past Python, such as `math.isfinite`, sees an ordinary number."""
        return super().__new__(cls, 1.0)

    def __repr__(self) -> str:
        """Return what cannot be mistaken for a value."""
        return repr(math.nan)

    def __format__(self, spec: str) -> str:
        """Return the same in any format."""
        return format(math.nan, spec)

    def __round__(self, num_digits: Any = None) -> Any:
        """Return another unknown number; a whole one would be a question."""
        return UnknownNumber() if num_digits is not None else _refuse()

    __hash__ = float.__hash__


def _refuse(*_: Any) -> NoReturn:
    raise DataDependentOutputException(_NUMBER_OF)


def _compare(*_: Any) -> bool:
    if sys._getframe(1).f_globals.get("__name__") in _OPTIMIZERS:
        return True
    _refuse()


def _unknown(*_: Any) -> UnknownNumber:
    return UnknownNumber()


for _name in _ARITHMETIC.split():
    setattr(UnknownNumber, f"__{_name}__", _unknown)
for _name in _COMPARISONS.split():
    setattr(UnknownNumber, f"__{_name}__", _compare)
for _name in _QUESTIONS.split():
    setattr(UnknownNumber, f"__{_name}__", _refuse)


def answer(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return what one of `CONCERNED` gives for a fake tensor whose values matter; `NotImplemented` for all others."""
    tensor = args[0] if args else kwargs.get("input")
    if not isinstance(tensor, FakeTensor) or tensor.constant is not None:
        return NotImplemented
    known: bool | None = getattr(tensor, "known_answer", None)
    if func in _ASK:
        if known is not None:
            return known
        is_number = func is torch.Tensor.item and tensor.is_floating_point() and tensor.numel() == 1
        return UnknownNumber() if is_number else NotImplemented
    known = _ALL_IS_WELL.get(func, known)
    result = func(*args, **kwargs)
    if known is not None and isinstance(result, FakeTensor):
        result.known_answer = known  # type: ignore[attr-defined]
    return result
