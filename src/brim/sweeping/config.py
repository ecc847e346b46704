"""Configurations: dotted keys into nested ones, merged over a base, with an identity of their own."""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from brim.errors import InputError

# Hexadecimal digits of a trial's identity: with 64 bits, a million trials share one with a chance of 3e-8.
_NUM_ID_DIGITS = 16
# From here on floats are too coarse to be whole numbers.
_LARGEST_WHOLE_FLOAT = 2.0**53


class Missing:
    """What `look_up` returns for a key that is not there, where None may be a value."""


MISSING = Missing()


def canonical(value: Any) -> str:
    """Return a text that is equal for equal values; 1 and 1.0 are equal, 1 and true are not.

    >>> canonical({"b": 1.0, "a": [True, "x"]})
    '{"a":[true,"x"],"b":1}'
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), default=str)


def identity(resolved: Mapping[str, Any]) -> str:
    """Return the name of a trial: the hash of its whole configuration.

    >>> identity({"hp": {"lr": 1}}) == identity({"hp": {"lr": 1.0}})
    True
    """
    return hashlib.sha256(canonical(resolved).encode()).hexdigest()[:_NUM_ID_DIGITS]


def merge(base: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the base with every dotted key of `config` put in its place.

    >>> merge({"model": {"type": "s3d", "depth": 3}}, {"model.type": "r3d_18", "hp.lr": 0.01})
    {'model': {'type': 'r3d_18', 'depth': 3}, 'hp': {'lr': 0.01}}
    """
    merged = copy.deepcopy(dict(base))
    for key, value in config.items():
        *branches, leaf = key.split(".")
        place = merged
        for branch in branches:
            place = place.setdefault(branch, {})
        place[leaf] = copy.deepcopy(value)
    return merged


def look_up(config: Mapping[str, Any], key: str) -> Any:
    """Return what a nested configuration has at a dotted key, or MISSING.

    >>> look_up({"hp": {"lr": 0.1}}, "hp.lr"), look_up({}, "hp.lr") is MISSING
    (0.1, True)
    """
    place: Any = config
    for part in key.split("."):
        if not isinstance(place, Mapping) or part not in place:
            return MISSING
        place = place[part]
    return place


def check_keys(keys: Iterable[str], base: Mapping[str, Any] | None) -> None:
    """Refuse keys that cannot stand together, or that the base does not know."""
    listed = list(dict.fromkeys(keys))
    for key in listed:
        if not key or not all(key.split(".")):
            raise InputError(f"{key!r} is not a key. Write dotted names such as hp.batch_size.")
        below = next((other for other in listed if other.startswith(f"{key}.")), None)
        if below is not None:
            raise InputError(
                f"{key} cannot be both a value and a branch: {below} lies below it. Leave out one of them."
            )
    if base is not None:
        for key in listed:
            _check_against_base(key, base)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a sentence that names the nearest known name, or all of them where none is near."""
    listed = list(known)
    near = difflib.get_close_matches(name, listed, n=1, cutoff=0.5)
    if near:
        return f"Did you mean {near[0]}?"
    return f"Known: {', '.join(listed)}." if listed else "There is none."


def leaves(config: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted keys of all values.

    >>> leaves({"model": {"type": "s3d"}, "seed": 0})
    ['model.type', 'seed']
    """
    found = []
    for name, value in config.items():
        key = f"{prefix}{name}"
        found += leaves(value, f"{key}.") if isinstance(value, Mapping) and value else [key]
    return found


def _check_against_base(key: str, base: Mapping[str, Any]) -> None:
    found = look_up(base, key)
    if isinstance(found, Mapping) and found:
        raise InputError(
            f"{key} is a branch of the base, not a value. Sweep what lies below it, such as {key}.{next(iter(found))}."
        )
    if found is not MISSING:
        return
    parts = key.split(".")
    for depth in range(1, len(parts)):
        above = ".".join(parts[:depth])
        value = look_up(base, above)
        if value is not MISSING and not isinstance(value, Mapping):
            raise InputError(f"{key} lies below {above}, which is a value in the base ({value!r}), not a branch.")
    raise InputError(f"The base has no {key}. {nearest(key, leaves(base))} A new key has to be added to the base.")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST_WHOLE_FLOAT:
        return int(value)
    return value
