"""Values that a trace does not have: what may be done with them all the same.

A number that a step only prints, keeps or reckons with has no say in memory, so it may be anything. A step that asks
about it could take either way: it takes the one that a trace is told (`branches.py`), else it is refused, but where the
worst case is plain (`questions.py`), numbers are asked to be finite, or only a learning rate depends on it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn
from unittest import mock

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor

from brim.tracing import masks
from brim.tracing.branches import Branches
from brim.tracing.questions import How, Questions, asking_frame, is_answered_elsewhere, outside

_NUMBER_OF = torch.ops.aten._local_scalar_dense.default
_ARITHMETIC = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv pow rpow mod rmod neg pos abs trunc floor ceil"
)
_QUESTIONS = "int index divmod rdivmod"
_COMPARISONS = "lt le gt ge eq ne"
# What keeps a number within bounds and only reckons with it, or sets a learning rate by it.
_NEUTRAL = ("torch.optim._adafactor", "torch.optim.asgd", "torch.optim.lr_scheduler", "transformers.optimization")
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
_ALL_IS_WELL_IN_NUMPY: Mapping[str, bool] = {"isnan": False, "isinf": False, "isfinite": True}
_KEEP_THE_ANSWER = (torch.any, torch.Tensor.any, torch.all, torch.Tensor.all)
# What joins two answers.
_JOIN: Mapping[Any, Callable[[bool, bool], bool]] = {
    torch.logical_or: bool.__or__,
    torch.Tensor.logical_or: bool.__or__,
    torch.Tensor.__or__: bool.__or__,
    torch.logical_and: bool.__and__,
    torch.Tensor.logical_and: bool.__and__,
    torch.Tensor.__and__: bool.__and__,
}
_ASK_WHETHER = (
    torch.Tensor.__bool__,
    torch.Tensor.__contains__,
    torch.equal,
    torch.Tensor.equal,
    torch.allclose,
    torch.Tensor.allclose,
)
# How they are asked; all others are called.
_HOW = {torch.Tensor.__bool__: How.TRUTH, torch.Tensor.__contains__: How.CONTAINED, torch.Tensor.item: How.ITEM}
_ASK = (*_ASK_WHETHER, torch.Tensor.item, torch.Tensor.__float__)
# The functions that `Values.answer` is to be asked about.
_DATA = torch.Tensor.data.__get__  # type: ignore[attr-defined]
CONCERNED = frozenset((*_ALL_IS_WELL, *_KEEP_THE_ANSWER, *_JOIN, *_ASK, *masks.CONCERNED, _DATA))


class UnknownNumber(float):
    """A number that is printed as `nan`, gives others like it in arithmetic, and refuses to be asked about.

    It is no whole number, even of a tensor of such: nothing can be counted or made by it.

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
        """Return the same in any format, also in one for whole numbers."""
        return _formatted(spec)

    def __round__(self, num_digits: Any = None) -> Any:
        """Return another unknown number."""
        return UnknownNumber()

    def __float__(self) -> float:
        """Refuse to become known, unless it is for a learning rate."""
        return 1.0 if sys._getframe(1).f_globals.get("__name__") in _NEUTRAL else refuse()

    def __bool__(self) -> bool:
        """Return what a trace is told, or refuse."""
        return _current.decide(How.TRUTH)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return what a function of NumPy gives for it: an array without values, and that all is well."""
        from brim.tracing.arrays import without_values

        well = _ALL_IS_WELL_IN_NUMPY.get(ufunc.__name__)
        return well if well is not None else without_values(getattr(ufunc, method))(*args, **kwargs)

    def __hash__(self) -> int:
        """Refuse to be told from others, as in a set; torch only looks up whether it has seen the like."""
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        return 0 if caller.startswith(("torch.", "brim.")) else refuse()


class Values:
    """What is known of values in one trace, and what was refused.

    Attributes:
        refused: Every question that was refused: a step that takes no notice is refused in the end.
        asks_known: Whether values that are known were asked for, such as random numbers of the host.
        is_given: Returns whether a tensor is the workload's own and not the model's.
        branches: Takes branches on values; None while a model is built, which needs the values themselves.
    """

    def __init__(self) -> None:
        self.refused: list[Exception] = []
        self.asks_known = False
        self.is_given: Callable[[torch.Tensor], bool] = lambda tensor: True
        self.branches: Branches | None = None
        self._questions = Questions()

    def answer(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what one of `CONCERNED` gives for a fake tensor whose values matter; else `NotImplemented`."""
        tensor = args[0] if args else kwargs.get("input")
        if func == _DATA:
            masks.forget(tensor)
            return NotImplemented
        if func in masks.CONCERNED:
            return masks.noted(func(*args, **kwargs)) if masks.are_ones(tensor) else NotImplemented
        if not isinstance(tensor, FakeTensor):
            return NotImplemented
        if tensor.constant is not None:
            self.asks_known |= func in _ASK
            return NotImplemented
        known: bool | None = getattr(tensor, "known_answer", None)
        if func in _ASK:
            is_answer = known is not None and func in (torch.Tensor.__bool__, torch.Tensor.item)
            return known if is_answer else self._ask(func, tensor)
        if func in _JOIN:
            other = getattr(args[1], "known_answer", None) if len(args) > 1 else None
            known = None if known is None or other is None else _JOIN[func](known, other)
        known = _ALL_IS_WELL.get(func, known)
        result = func(*args, **kwargs)
        if known is not None and isinstance(result, FakeTensor):
            result.known_answer = known  # type: ignore[attr-defined]
        return result

    def decide(self, how: How) -> bool:
        """Return how a comparison with an unknown number ends, or what its truth is."""
        frame = outside(sys._getframe(2))
        if frame is not None and frame.f_globals.get("__name__") in _NEUTRAL:
            return True
        answer = self._questions.answer(frame, how)
        if answer is None:
            answer = self._branch(frame)
        return self.refuse() if answer is None else answer

    def refuse(self, error: Exception | None = None) -> NoReturn:
        """Refuse to answer, and remember it."""
        error = error or DataDependentOutputException(_NUMBER_OF)
        self.refused.append(error)
        raise error

    def _ask(self, func: Any, tensor: torch.Tensor) -> Any:
        if func is torch.Tensor.__float__:
            is_neutral = sys._getframe(3).f_globals.get("__name__") in _NEUTRAL
            return 1.0 if is_neutral else NotImplemented
        if func in _ASK_WHETHER or tensor.dtype is torch.bool:
            frame = asking_frame()
            if frame is not None and frame.f_globals.get("__name__") in _NEUTRAL:
                return True
            answer = masks.answer(frame, self.is_given)
            if answer is None:
                answer = self._questions.answer(frame, _HOW.get(func, How.CALLED))
            if answer is None:
                answer = self._branch(frame)
            return NotImplemented if answer is None else answer
        if tensor.numel() != 1 or tensor.is_complex():
            return NotImplemented
        if tensor.is_floating_point():
            return UnknownNumber()
        try:
            return tensor.item()  # by whoever knows how long texts become
        except DataDependentOutputException as error:
            self.refused.remove(error)
            error.with_traceback(None)  # whose frames hold tensors, in a circle
            return UnknownNumber()

    def _branch(self, frame: FrameType | None) -> bool | None:
        """Return which way a branch goes; None where it is none, or values are needed."""
        if frame is None or self.branches is None or is_answered_elsewhere(frame):
            return None
        try:
            return self.branches.take(frame)
        except DataDependentOutputException as error:
            self.refuse(error)


# Those of the trace that runs now: unknown numbers are asked anywhere.
_current = Values()


def refuse(*_: Any, **__: Any) -> NoReturn:
    """Refuse a question about an unknown number."""
    _current.refuse()


def is_true(*_: Any) -> bool:
    """Return what a trace is told of a value without which its caller does not know where to go, or refuse."""
    return _current.decide(How.TRUTH)


def _compare(*_: Any) -> bool:
    return _current.decide(How.COMPARED)


def _reckon(_: UnknownNumber, *others: Any) -> Any:
    return NotImplemented if any(isinstance(other, torch.Tensor) for other in others) else UnknownNumber()


for _name in _ARITHMETIC.split():
    setattr(UnknownNumber, f"__{_name}__", _reckon)
for _name in _COMPARISONS.split():
    setattr(UnknownNumber, f"__{_name}__", _compare)
for _name in _QUESTIONS.split():
    setattr(UnknownNumber, f"__{_name}__", refuse)


# Kinds of values that nobody knows; arrays are one of them where there is NumPy.
UNKNOWN: set[type] = {UnknownNumber}


def has_unknown(args: Sequence[Any]) -> bool:
    """Return whether there is an unknown number or array among arguments, or in their lists."""
    for value in args:  # noqa: SIM110  every call of torch comes here, and a generator costs twice as much
        if type(value) in UNKNOWN or (type(value) in (list, tuple) and has_unknown(value)):
            return True
    return False


def forget(tensor: Any) -> None:
    """Know no longer the values of a tensor that would be known if an unknown number were."""
    if isinstance(tensor, FakeTensor) and tensor.constant is not None:
        tensor.fake_mode.fake_tensor_converter.invalidate_constant_aliases(tensor.constant)
        tensor.constant = None


@contextmanager
def values_of_trace() -> Iterator[Values]:
    """Let one trace know what it may of values."""
    global _current
    before, _current = _current, Values()
    try:
        with mock.patch.object(FakeTensor, "__format__", _format_tensor):
            yield _current
    finally:
        _current = before


def _format_tensor(tensor: torch.Tensor, spec: str) -> str:
    return _formatted(spec) if tensor.dim() == 0 else object.__format__(tensor, spec)


def _formatted(spec: str) -> str:
    try:
        return format(math.nan, spec)
    except ValueError:  # a format of whole numbers
        return repr(math.nan)
