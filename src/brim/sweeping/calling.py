"""A trial that is a function: calls it in this process and writes down what it returned or raised."""

from __future__ import annotations

import json
import numbers
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brim.errors import InputError, WorkloadNotFoundError
from brim.sweeping.outcome import FAILURE_FILE, ExitKind

FAILED = 1


def call(address: str, argument: Path, result: Path) -> int:
    """Call the function with the configuration, keep what it returns, and return the exit code."""
    # As `python train.py` does: modules beside the sweep are found.
    sys.path.insert(0, str(Path.cwd()))
    try:
        function = load_function(address)
        returned = function(_read(argument))
        metrics = as_metrics(returned)
        if metrics is not None:
            result.write_text(json.dumps(metrics, default=_as_number), encoding="utf-8")
    except Exception as error:  # noqa: BLE001  the user's function may raise anything
        traceback.print_exc()
        _note_failure(result.with_name(FAILURE_FILE), error)
        return FAILED
    return 0


def load_function(address: str) -> Any:
    """Import `file.py:name` or `package.module:name`."""
    from brim.workload import load_object

    function = load_object(address)
    if not callable(function):
        raise InputError(f"{address} is a {type(function).__name__}, not a function that takes a configuration.")
    return function


def as_metrics(returned: Any) -> dict[str, Any] | None:
    """Return metrics for what a trial's function returned; None where it returned nothing.

    >>> as_metrics({"accuracy": 0.7}), as_metrics(0.7), as_metrics(None)
    ({'accuracy': 0.7}, {'value': 0.7}, None)
    """
    if returned is None:
        return None
    if isinstance(returned, Mapping):
        return {str(name): value for name, value in returned.items()}
    if isinstance(returned, numbers.Number) or hasattr(returned, "item"):
        return {"value": _as_number(returned)}
    raise InputError(f"The function returned a {type(returned).__name__}. Return a mapping of metrics, or a number.")


def _read(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return json.loads(text)
    import yaml

    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _as_number(value: Any) -> Any:
    """Return the only value of a tensor or an array; what else is no number, as text."""
    try:
        return value.item()
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return value if isinstance(value, (int, float)) else str(value)


def _note_failure(path: Path, error: Exception) -> None:
    from brim.findings import Verdict
    from brim.probing.verdicts import classify

    kind = ExitKind.OOM if classify(error, nearly_full=False) is Verdict.OOM else ExitKind.ERROR
    message = " ".join(str(error).split())
    is_fatal = isinstance(error, WorkloadNotFoundError)  # no trial has the function
    detail = message if is_fatal else f"{type(error).__name__}: {message}".removesuffix(": ")
    path.write_text(json.dumps({"kind": kind, "detail": detail, "is_fatal": is_fatal}))
