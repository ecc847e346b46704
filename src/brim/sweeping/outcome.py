"""How a trial ended, and what it said."""

from __future__ import annotations

import enum
import json
import math
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from brim.findings import Verdict
from brim.groups import signal_name
from brim.probing.output import classify_text
from brim.records import AMOUNT, ANY, COUNT, FLAG, TEXT, WHOLE, Each, Maybe, check_record, one_of

RESULT_FILE = "result.json"
FAILURE_FILE = "failure.json"
LOG_FILE = "log.txt"
# As shells and containers write a death by a signal.
_SIGNAL_OFFSET = 128
_LOG_TAIL_BYTES = 16_000


class ExitKind(str, enum.Enum):
    """How a trial ended."""

    DONE = "done"
    OOM = "oom"
    HOST_OOM = "host_oom"
    ERROR = "error"
    TIMEOUT = "timeout"
    NODE_LOST = "node_lost"
    INTERRUPTED = "interrupted"

    def __str__(self) -> str:
        return self.value


# The shape of an outcome in the journal.
OUTCOME = {
    "kind": one_of(*(kind.value for kind in ExitKind)),
    "metrics": Each(ANY),
    "seconds": AMOUNT,
    "peak_bytes": Maybe(COUNT),
    "exit_code": Maybe(WHOLE),
    "detail": Maybe(TEXT),
    "effective": Each(ANY),
    "where": TEXT,
    "is_fatal": FLAG,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """What the host knows of a process that ended.

    Attributes:
        exit_code: As `subprocess` has it: negative for a signal; None where the process could not be started.
        peak_bytes: The most memory that the largest of its processes had on the host.
        problem: Why it could not be started.
        ended_by: `timeout` or `request` where brim ended it.
        oom_killed: Whether the kernel killed processes for lack of memory in the meantime.
    """

    exit_code: int | None
    seconds: float = 0.0
    peak_bytes: int | None = None
    problem: str | None = None
    ended_by: str | None = None
    oom_killed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """How one attempt at a trial ended.

    Attributes:
        metrics: Plain values that the trial reported.
        detail: Why it failed, in one line.
        effective: Values that were used instead of the requested ones, by key.
        where: The machine, and its GPUs where the trial had some.
        is_fatal: Whether no other trial could start either.
    """

    kind: ExitKind
    metrics: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    peak_bytes: int | None = None
    exit_code: int | None = None
    detail: str | None = None
    effective: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""
    is_fatal: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain data."""
        return {**asdict(self), "kind": self.kind.value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TrialOutcome:
        """Read what `to_dict` wrote."""
        check_record(data, OUTCOME)
        return cls(**{**data, "kind": ExitKind(data["kind"])})


def judge(ended: Exit, directory: Path) -> TrialOutcome:
    """Return the outcome of a trial whose process ended, by what it left in its directory."""
    metrics, problem = _metrics(directory)
    detail: str | None
    is_fatal = ended.exit_code is None
    if ended.exit_code is None:
        kind, detail = ExitKind.ERROR, ended.problem
    elif ended.ended_by == "timeout":
        kind, detail = ExitKind.TIMEOUT, f"ended after {ended.seconds:.0f} s, its time limit"
    elif ended.ended_by is not None:
        kind, detail = ExitKind.INTERRUPTED, "ended with the sweep"
    elif ended.exit_code == 0:
        kind, detail = (ExitKind.ERROR if problem else ExitKind.DONE), problem
    else:
        kind, detail = _why(ended, directory)
        is_fatal = _failure(directory).get("is_fatal", False)
    return TrialOutcome(
        kind=kind,
        metrics=metrics,
        seconds=ended.seconds,
        peak_bytes=ended.peak_bytes,
        exit_code=ended.exit_code,
        detail=detail,
        is_fatal=is_fatal,
    )


def _why(ended: Exit, directory: Path) -> tuple[ExitKind, str]:
    code = ended.exit_code
    assert code is not None
    if code in (-signal.SIGKILL, _SIGNAL_OFFSET + signal.SIGKILL) and ended.oom_killed:
        return ExitKind.HOST_OOM, "killed by the kernel: the host's memory ran out"
    if failure := _failure(directory):
        return ExitKind(failure["kind"]), failure["detail"]
    verdict, line = classify_text(log_tail(directory))
    if verdict is Verdict.OOM:
        return ExitKind.OOM, line
    if code < 0 or code > _SIGNAL_OFFSET:
        number = -code if code < 0 else code - _SIGNAL_OFFSET
        name = signal_name(number)
        return ExitKind.ERROR, f"ended by {name}" if code < 0 else f"exit code {code}, as after {name}"
    if not line or code == 1:
        return ExitKind.ERROR, line or "exit code 1"
    return ExitKind.ERROR, f"exit code {code}: {line}"


def _failure(directory: Path) -> dict[str, Any]:
    """Return what a function's process wrote of its failure; nothing of a command, or where the process died."""
    try:
        failure = json.loads((directory / FAILURE_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return failure if isinstance(failure, dict) and {"kind", "detail"} <= set(failure) else {}


def log_tail(directory: Path) -> str:
    """Return the last lines that a trial printed."""
    try:
        with (directory / LOG_FILE).open("rb") as log:
            size = log.seek(0, 2)
            log.seek(max(0, size - _LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")
    except OSError:
        return ""


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the plain values of nested metrics by dotted key; what JSON cannot hold becomes None.

    >>> flatten({"val": {"accuracy": 0.7, "curve": [1, 2]}, "loss": float("nan")})
    {'val.accuracy': 0.7, 'loss': None}
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flatten(value, f"{prefix}{name}.")
        elif isinstance(value, float) and not math.isfinite(value):
            found[f"{prefix}{name}"] = None
        elif isinstance(value, (str, int, float, bool)) or value is None:
            found[f"{prefix}{name}"] = value
    return found


def _metrics(directory: Path) -> tuple[dict[str, Any], str | None]:
    """Return what is in the result file, and what is wrong with it."""
    try:
        text = (directory / RESULT_FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}, None
    except (OSError, UnicodeDecodeError) as error:
        return {}, f"{RESULT_FILE} cannot be read: {error}"
    try:
        values = json.loads(text)
    except ValueError as error:
        return {}, f"{RESULT_FILE} is not JSON: {error}"
    if not isinstance(values, dict):
        return {}, f'{RESULT_FILE} must hold an object such as {{"accuracy": 0.71}}, not {values!r:.80}'
    return flatten(values), None
