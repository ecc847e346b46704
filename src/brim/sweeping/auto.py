"""`batch_size: auto`: the largest microbatch of a trial, found where the trial then runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from brim.errors import InputError
from brim.sweeping.config import MISSING, look_up
from brim.sweeping.file import check_names

if TYPE_CHECKING:
    from brim.sweeping.outcome import ExitKind

AUTO = "auto"
# What `brim.find` is asked besides the workload and the case.
_SETTINGS = ("cap", "memory", "fill", "device", "start", "multiple_of", "strategy", "steps", "timeout", "tries")
_NAMES = ("workload", "case", *_SETTINGS)


class BatchSizes:
    """The batch sizes that were found, by what was asked; None where nothing fits."""

    def __init__(self) -> None:
        self._found: dict[str, int | None] = {}
        self._finding: set[str] = set()

    def __getitem__(self, key: str) -> int | None:
        return self._found[key]

    def is_known(self, key: str) -> bool:
        """Return whether the answer is known."""
        return key in self._found

    def is_being_found(self, key: str | None) -> bool:
        """Return whether a trial is looking for the answer now."""
        return key in self._finding

    def find(self, key: str) -> None:
        """Hear that a trial is looking for the answer."""
        self._finding.add(key)

    def learn(self, key: str, microbatch: int | None, kind: ExitKind) -> None:
        """Hear what the trial found, if anything."""
        self._finding.discard(key)
        if microbatch is not None or kind.value == "oom":
            self._found[key] = microbatch

    def noted(self, key: str | None) -> dict[str, int | None]:
        """Return the answer as a journal keeps it; empty where there is none."""
        return {key: self._found[key]} if key is not None and key in self._found else {}

    def recall(self, noted: Mapping[str, int | None], *, search_again: bool) -> None:
        """Take the answers of an earlier run; with `search_again`, only those that something fits."""
        self._found.update({key: size for key, size in noted.items() if size is not None or not search_again})


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
