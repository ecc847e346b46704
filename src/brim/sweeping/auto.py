"""`batch_size: auto`: the largest microbatch of a trial, found where the trial then runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brim.errors import InputError
from brim.sweeping.config import MISSING, look_up
from brim.sweeping.file import check_names

AUTO = "auto"
# What `brim.find` is asked besides the workload and the case.
_SETTINGS = ("cap", "memory", "fill", "device", "start", "multiple_of", "strategy", "steps", "timeout", "tries")
_NAMES = ("workload", "case", *_SETTINGS)


def read_auto(value: Any, defaults: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a value asks to be found; None where it is a value like any other.

    >>> read_auto(32, {}), read_auto("auto", {"workload": "train.py:Finetune"})
    (None, {'workload': 'train.py:Finetune'})
    """
    if value == AUTO:
        settings: Mapping[str, Any] = {}
    elif isinstance(value, Mapping) and set(value) == {AUTO}:
        settings = value[AUTO] or {}
    else:
        return None
    if not isinstance(settings, Mapping):
        raise InputError(f"auto must be a mapping such as {{cap: 64, workload: train.py:Finetune}}, not {settings!r}.")
    check_names(settings, _NAMES, "auto")
    asked = {**defaults, **settings}
    if not isinstance(asked.get("workload"), str):
        raise InputError("A batch size `auto` needs a workload to find it with. Write `workload: file.py:Name`.")
    if not isinstance(asked.get("case", {}), Mapping):
        raise InputError(f"case must map the workload's names to keys of the configuration, not {asked['case']!r}.")
    return asked


def find_request(asked: Mapping[str, Any], resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `find_microbatch` is asked for a trial: equal for trials that need no search of their own."""
    case = {}
    for name, key in asked.get("case", {}).items():
        case[name] = look_up(resolved, key)
        if case[name] is MISSING:
            raise InputError(f"The case {name} should be the configuration's {key}, but there is no such key.")
    settings = {name: asked[name] for name in _SETTINGS if name in asked}
    return {"workload": asked["workload"], "case": case, "settings": settings}


def find_microbatch(request: Mapping[str, Any]) -> dict[str, Any]:
    """Find the largest microbatch of the request's case; runs in the trial's place, before it."""
    import logging

    from brim.finding import find

    # The process is the search's own, and so is its log.
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    (finding,) = find(request["workload"], cases=[request["case"]], **request["settings"])
    return {
        "microbatch": finding.microbatch,
        "note": finding.note,
        "stopped_by": finding.stopped_by,
        "peak_bytes": finding.peak_bytes,
        "seconds": finding.seconds,
    }
