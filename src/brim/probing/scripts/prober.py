"""Probes of a command: every probe is a run of the real thing, ended after its steps."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from brim.cases import Case
from brim.devices import Device
from brim.findings import Race, Verdict
from brim.history import default_path
from brim.probing.isolated import DEFAULT_TIMEOUT_SECONDS
from brim.probing.mixing import Mix
from brim.probing.outcome import Outcome, Traced
from brim.probing.scripts.command import Command
from brim.probing.scripts.job import Watch, run_job
from brim.probing.scripts.records import Ended, judge


class CommandProber:
    """Runs a command for each probe and takes its verdict from all ranks; leaves no process behind."""

    def __init__(
        self,
        command: Command,
        device: Device,
        limits_bytes: tuple[int, ...],
        *,
        timeout_seconds: float | None = None,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._command = command
        self._device_type = device.name.partition(":")[0]
        self._limits_bytes = limits_bytes
        self._timeout_seconds = timeout_seconds or DEFAULT_TIMEOUT_SECONDS
        self._say = say
        self._seen: dict[Case, dict[int, tuple[int, int]]] = {}
        self.kind = "train"
        self.ranks = 1

    def probe(
        self,
        case: Case,
        microbatch: int,
        *,
        steps: int,
        confirms: bool = False,
        mix: Mix = (),
        race: Race | None = None,
    ) -> Outcome:
        """Run the command once."""
        assert not mix, "a command draws its own lengths"
        assert race is None, "a command has one size"
        ended, log = self.run(case, microbatch, steps=steps)
        return self.outcome(case, microbatch, ended, log)

    def run(
        self,
        case: Case,
        microbatch: int,
        *,
        steps: int,
        base: Mapping[str, str] | None = None,
        cancelled: threading.Event | None = None,
    ) -> tuple[Ended, Path]:
        """Run the command once and return how it ended, and its log."""
        start = f"{time.strftime('%Y%m%d-%H%M%S')}-{self._command.label}-{microbatch}-"
        descriptor, name = tempfile.mkstemp(prefix=start, suffix=".log", dir=_logs_folder())
        os.close(descriptor)
        ended = run_job(
            self._command.fill_in(case, microbatch),
            watch=Watch(steps=steps, device=self._device_type, limits_bytes=self._limits_bytes),
            log=Path(name),
            timeout_seconds=self._timeout_seconds,
            say=self._say,
            base=base,
            cancelled=cancelled,
        )
        return ended, Path(name)

    def outcome(self, case: Case, microbatch: int, ended: Ended, log: Path) -> Outcome:
        """Return the verdict over all ranks; the log is kept where it failed for another reason than memory."""
        outcome = judge(ended, microbatch, timeout_seconds=self._timeout_seconds)
        if outcome.probe.verdict is Verdict.FITS:
            self.kind = ended.worked[0].kind
            self.ranks = max(record.num_ranks for record in ended.worked)
            outcome = self._checked(outcome, ended, case)
        return self._with_log(replace(outcome, sources={**self._command.sources(), **outcome.sources}), log)

    def trace(self, case: Case, *, cap: int, steps: int) -> Traced:
        """Return no points: nobody knows the command's model before it runs."""
        return Traced()

    def close(self) -> None:
        """Do nothing: every probe ended its own processes."""

    def _checked(self, outcome: Outcome, ended: Ended, case: Case) -> Outcome:
        """Refuse a larger microbatch that gave the modules nothing more: the script's data had ended."""
        microbatch = outcome.probe.microbatch
        seen = max(record.rows for record in ended.worked), max(record.elements for record in ended.worked)
        before = self._seen.setdefault(case, {})
        for smaller, (rows, elements) in before.items():
            if smaller < microbatch and seen[0] <= rows and seen[1] <= elements and rows:
                detail = (
                    f"the model saw no more at microbatch {microbatch} than at {smaller}: {rows} samples at once. "
                    f"If the data or a setting of the script ends there, pass --cap {max(rows, 1)}."
                )
                probe = replace(outcome.probe, verdict=Verdict.ERROR, detail=detail)
                return replace(outcome, probe=probe, idle=True, log_tail=ended.log_tail)
        before[microbatch] = seen
        return outcome

    def _with_log(self, outcome: Outcome, log: Path) -> Outcome:
        if outcome.probe.verdict in (Verdict.ERROR, Verdict.UNCLEAR):
            return replace(outcome, log_file=str(log))
        log.unlink()
        return outcome


def _logs_folder() -> Path:
    """Return where logs are kept: beside the history, or for temporary files where that cannot be written."""
    folder = default_path().parent / "logs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.gettempdir())
    return folder if os.access(folder, os.W_OK) else Path(tempfile.gettempdir())
