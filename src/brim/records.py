"""Documents that come from outside, held against their shape before anything reads them.

A shape is made of plain values: a `Leaf` for one value, a list of one shape for a list, `Filled` for one that is not
empty, a dict of names for an object, `Each` for an object of any names, `Maybe` for null. A name that ends in `?` may
be missing; names that the shape does not have are left alone, for a newer brim may write more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from brim.errors import RecordError

# Of a value that is wrong, as many letters are shown.
_MOST_LETTERS = 40
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Leaf:
    """One value: what it should be, in words, and whether one is that."""

    expected: str
    accepts: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Maybe:
    """A shape, or null."""

    shape: Any


@dataclass(frozen=True, slots=True)
class Filled:
    """A list of at least one element, all of one shape."""

    shape: Any


@dataclass(frozen=True, slots=True)
class Each:
    """An object whose values all have one shape."""

    shape: Any


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number; a truth value is none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    """Return whether a value is a number that can be reckoned with."""
    return is_whole(value) or (isinstance(value, float) and math.isfinite(value))


ANY = Leaf("anything", lambda value: True)
TEXT = Leaf("a text", lambda value: isinstance(value, str))
FLAG = Leaf("true or false", lambda value: isinstance(value, bool))
WHOLE = Leaf("a whole number", is_whole)
COUNT = Leaf("a whole number of at least 0", lambda value: is_whole(value) and value >= 0)
SIZE = Leaf("a whole number of at least 1", lambda value: is_whole(value) and value >= 1)
NUMBER = Leaf("a number", is_finite)
AMOUNT = Leaf("a number of at least 0", lambda value: is_finite(value) and value >= 0)
PLAIN = Leaf("a number, a text, true or false", lambda value: isinstance(value, (bool, str)) or is_finite(value))


def one_of(*names: str) -> Leaf:
    """Return the shape of a word out of a few."""
    return Leaf(f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names)


def check_record(value: Any, shape: Any, *, where: str = "") -> None:
    """Hold a value against its shape.

    Raises:
        RecordError: It is another; the error says where, what was found and what was expected.

    >>> check_record({"probes": [{"microbatch": "many"}]}, {"probes": [{"microbatch": SIZE}]})
    Traceback (most recent call last):
    brim.errors.RecordError: probes[0].microbatch is "many", expected a whole number of at least 1
    """
    if isinstance(shape, Maybe) and value is None:
        return
    inner = shape.shape if isinstance(shape, Maybe) else shape
    if not _has_form(value, inner):
        raise RecordError(where, _show(value), _expected(shape))
    for name, each, wanted in _parts(value, inner):
        path = f"{where}{name}" if name.startswith("[") or not where else f"{where}.{name}"
        if each is _MISSING:
            raise RecordError(path, "missing", _expected(wanted))
        check_record(each, wanted, where=path)


def _expected(shape: Any) -> str:
    """Return what a value should be, in words."""
    if isinstance(shape, Leaf):
        return shape.expected
    if isinstance(shape, Maybe):
        return f"{_expected(shape.shape)}, or null"
    if isinstance(shape, Filled):
        return "a list that is not empty"
    return "a list" if isinstance(shape, list) else "an object"


def _has_form(value: Any, shape: Any) -> bool:
    """Return whether a value is of the right kind itself, whatever is inside it."""
    if isinstance(shape, Leaf):
        return shape.accepts(value)
    if isinstance(shape, (list, Filled)):
        return isinstance(value, list) and (isinstance(shape, list) or bool(value))
    return isinstance(value, dict)


def _parts(value: Any, shape: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield what is inside a value: where, what there is, and its shape."""
    if isinstance(shape, (list, Filled)):
        inner = shape[0] if isinstance(shape, list) else shape.shape
        yield from ((f"[{index}]", each, inner) for index, each in enumerate(value))
    elif isinstance(shape, Each):
        yield from ((name, each, shape.shape) for name, each in value.items())
    elif isinstance(shape, dict):
        for field, wanted in shape.items():
            name = field.removesuffix("?")
            if name in value or name == field:
                yield name, value.get(name, _MISSING), wanted


def _show(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]}…"
