"""What the ranks of a job write for each other and for brim, and the verdict over all of them."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from brim.findings import Probe, Verdict
from brim.groups import signal_name
from brim.probing.merging import is_from_peer
from brim.probing.outcome import Outcome
from brim.probing.output import classify_text

# How torchrun says that a signal ended one of its processes.
_SIGNAL_TEXT = re.compile(r"Signal \d+ \((SIG\w+)\) received by PID (\d+)")
# What to check where no step was seen.
_SEEN = (
    "A step is an optimizer step, a module's forward pass in evaluation, or a whole `generate`, on the device "
    "that --device names, in a Python process that reads PYTHONPATH (not python -I or -E). Check that the command gets "
    "that far"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What one rank did.

    Attributes:
        status: `running`, `done` when all steps were run, `ended` when the process came to its own end, or `failed`.
        begun: The steps that it ended, and the one that it was in.
        timings: The times of the steps after the first, or of the only one.
        rows: The most rows that a module was given at once: its samples, where these lie along the first dimension.
        columns: The same along the second.
        rows_in_all: The rows of all calls of the module that was given most.
        columns_in_all: The same of columns.
        elements: The most elements that a module was given at once.
        failure: Verdict, detail, phase, time and perhaps traceback of its first failure.
    """

    status: str
    pid: int
    rank: int
    num_ranks: int
    kind: str
    steps: int
    begun: int
    step_seconds: float
    peak_bytes: int
    rows: int
    columns: int
    rows_in_all: int
    columns_in_all: int
    elements: int
    timings: Sequence[float] = ()
    memory: Mapping[str, int] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    failure: Mapping[str, Any] | None = None

    @property
    def num_steps(self) -> int:
        """The whole steps; forward passes where an optimizer was made and never used."""
        return self.steps or self.calls.get("forward", 0)

    def num_samples(self, microbatch: int) -> int:
        """Return how many samples the model saw, along the dimension in which the microbatch shows."""
        is_time_first = self.rows % microbatch != 0 and self.columns == microbatch
        return self.columns_in_all if is_time_first else self.rows_in_all


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Write the record of this process so that no reader ever sees half of it."""
    path = folder / f"{record['pid']}.json"
    temporary = path.with_suffix(".new")
    with contextlib.suppress(OSError):  # the folder goes away when brim has heard enough
        temporary.write_text(json.dumps(record))
        temporary.replace(path)


def read_records(folder: Path) -> list[Record]:
    """Return what the ranks wrote, in their order."""
    records = [Record(**json.loads(path.read_text())) for path in folder.glob("*.json")]
    return sorted(records, key=lambda record: record.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a job ended.

    Attributes:
        exit_code: The command's, or None where it had to be ended.
        num_left: How many of its processes still ran when the command had ended.
        is_hung: Whether it was ended because nothing moved any more.
        is_host_full: Whether the kernel killed a process for lack of memory meanwhile.
        hook_failure: The traceback of the start-up hook, where that failed.
    """

    records: tuple[Record, ...]
    exit_code: int | None = None
    num_left: int = 0
    is_hung: bool = False
    is_host_full: bool = False
    log_tail: str = ""
    hook_failure: str | None = None

    @property
    def worked(self) -> tuple[Record, ...]:
        """The records of the ranks that did a step."""
        return tuple(record for record in self.records if record.num_steps)


def all_done(records: Sequence[Record]) -> bool:
    """Return whether every rank has done its steps."""
    num_done = sum(record.status == "done" for record in records)
    return num_done >= max((record.num_ranks for record in records), default=1)


def judge(ended: Ended, microbatch: int, *, timeout_seconds: float) -> Outcome:
    """Return the verdict over all ranks: the first failure decides, for the others may only follow from it."""
    failures = [record for record in ended.records if record.failure and not is_from_peer(record.failure["detail"])]
    if failures:
        return _failed(min(failures, key=lambda record: record.failure["time"]), ended, microbatch)  # type: ignore[index]
    if ended.hook_failure is not None and not ended.records:
        return _idle("", ended, microbatch)
    if ended.is_hung and ended.worked:
        return replace(_outcome(Verdict.UNCLEAR, _how_it_hung(ended, timeout_seconds), ended, microbatch), hung=True)
    if ended.is_hung:
        return _idle(f"no step was seen within {timeout_seconds:g} s. {_SEEN}, or raise --timeout.", ended, microbatch)
    if ended.exit_code:
        return _exited(ended, microbatch)
    if ended.exit_code is None and not all_done(ended.records):
        # Nothing but lost connections: somebody has died, and the launcher did not say how.
        lost = ", ".join(str(record.rank) for record in ended.records if record.failure)
        return _outcome(Verdict.UNCLEAR, f"lost a rank (its peer, rank {lost}, says so)", ended, microbatch)
    if ended.num_left and not ended.worked:
        detail = (
            f"the command ended while {ended.num_left} of its processes still ran, and these were ended. "
            "Run it in the foreground."
        )
        return _outcome(Verdict.ERROR, detail, ended, microbatch)
    if not ended.worked:
        return _idle(f"the command ended without a step that could be seen. {_SEEN}.", ended, microbatch)
    return _fits(ended, microbatch)


def _fits(ended: Ended, microbatch: int) -> Outcome:
    """Return the merged evidence: the highest peak, the slowest and the fewest steps."""
    ranks = ended.worked
    fewest = min(ranks, key=lambda record: record.num_steps)
    fullest = max(ranks, key=lambda record: record.peak_bytes)
    slowest = max(ranks, key=lambda record: record.step_seconds)
    probe = Probe(
        microbatch=microbatch,
        verdict=Verdict.FITS,
        peak_bytes=fullest.peak_bytes,
        step_seconds=slowest.step_seconds,
        timings=tuple(slowest.timings),
        steps=fewest.num_steps,
        samples=fewest.num_samples(microbatch),
        calls=dict(fewest.calls),
        memory=dict(fullest.memory),
    )
    return Outcome(probe=probe, sources=_sources(ranks))


def _failed(record: Record, ended: Ended, microbatch: int) -> Outcome:
    failure = record.failure
    assert failure is not None
    detail = failure["detail"] if record.num_ranks == 1 else f"rank {record.rank}: {failure['detail']}"
    outcome = _outcome(Verdict(failure["verdict"]), detail, ended, microbatch, phase=failure["phase"])
    return replace(outcome, traceback=failure.get("traceback"))


def _exited(ended: Ended, microbatch: int) -> Outcome:
    """Judge a command that failed without an exception that the witness saw."""
    assert ended.exit_code is not None
    # The launcher itself ends the other ranks, by SIGTERM.
    signals = sorted(_SIGNAL_TEXT.finditer(ended.log_tail), key=lambda match: match[1] == "SIGTERM")
    killed = signals[0] if signals else None
    name = signal_name(-ended.exit_code) if ended.exit_code < 0 else killed[1] if killed else None
    if name is not None:
        if name == "SIGKILL" and ended.is_host_full:
            detail = "the kernel killed a process: the host's memory ran out"
            return _outcome(Verdict.OOM, detail, ended, microbatch)
        whose = "" if killed is None else _whose(int(killed[2]), ended.records)
        return _outcome(Verdict.UNCLEAR, f"{whose}was ended by {name}", ended, microbatch)
    verdict, line = classify_text(ended.log_tail)
    if verdict is Verdict.ERROR and is_from_peer(line):
        return _outcome(Verdict.UNCLEAR, f"lost a rank ({line})", ended, microbatch)
    before = "" if ended.worked else " before its first step"
    detail = line if verdict is Verdict.OOM else f"it ended with exit code {ended.exit_code}{before}: {line}"
    return _outcome(verdict, detail, ended, microbatch, phase="step" if ended.worked else "start")


def _how_it_hung(ended: Ended, timeout_seconds: float) -> str:
    """Name the ranks that are behind the others: these are waiting for them."""
    detail = f"made no progress for {timeout_seconds:g} s and was ended"
    most = max(record.begun for record in ended.records)
    behind = [str(record.rank) for record in ended.records if record.begun < most]
    return f"{detail} in step {most}" + (f"; rank {', '.join(behind)} was behind" if behind else "")


def _whose(pid: int, records: Sequence[Record]) -> str:
    return next((f"of rank {record.rank} " for record in records if record.pid == pid), "")


def _idle(detail: str, ended: Ended, microbatch: int) -> Outcome:
    if ended.hook_failure is not None:
        reason = ended.hook_failure.strip().splitlines()[-1]
        detail = f"brim could not look into the command's Python: {reason}. Install brim into its environment as well."
    outcome = _outcome(Verdict.ERROR, detail, ended, microbatch, phase="start")
    return Outcome(probe=outcome.probe, phase="start", idle=True, log_tail=outcome.log_tail)


def _outcome(verdict: Verdict, detail: str, ended: Ended, microbatch: int, *, phase: str = "step") -> Outcome:
    probe = Probe(microbatch=microbatch, verdict=verdict, detail=detail)
    return Outcome(probe=probe, phase=phase, log_tail=ended.log_tail, sources=_sources(ended.records))


def _sources(records: Sequence[Record]) -> dict[str, str]:
    return {path: digest for record in records for path, digest in record.sources.items()}
