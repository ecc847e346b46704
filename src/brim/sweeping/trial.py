"""One attempt at a trial: its directory, its processes one after the other, its outcome."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from brim.sweeping.command import CONFIG_FILE, fill_in
from brim.sweeping.config import merge
from brim.sweeping.hosting import TrialHost
from brim.sweeping.jobs import Job
from brim.sweeping.outcome import FAILURE_FILE, LOG_FILE, RESULT_FILE, Exit, ExitKind, TrialOutcome, judge

EXIT_FILE = "exit.json"
_FIND_FILE = "find.json"
_FINDING_FILE = "finding.json"
_PATIENCE_SECONDS = 0.5
_FIND = "brim.sweeping.auto:find_microbatch"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """Everything that an engine needs to run a trial, wherever it runs it.

    Attributes:
        config: The whole nested configuration.
        command: The words of a command; None where `function` is called.
        function: The address of a function that takes the configuration.
        workdir: Where the command or the function runs.
        find: What the search for the largest microbatch is asked before the trial; None where it is not.
        find_key: The key of the configuration that takes the answer.
    """

    trial_id: str
    attempt: int
    config: Mapping[str, Any]
    command: tuple[str, ...] | None
    function: str | None
    workdir: str
    find: Mapping[str, Any] | None = None
    find_key: str = ""
    timeout_seconds: float | None = None


class TrialRun:
    """An attempt that runs on a host: first the search for its batch size where it asks for one, then the trial."""

    def __init__(
        self, request: TrialRequest, *, directory: Path, host: TrialHost, environment: Mapping[str, str], where: str
    ) -> None:
        self._request = request
        self._directory = directory.resolve()  # the trial runs elsewhere
        self._host = host
        self._environment = dict(environment)
        self._where = where
        self._effective: dict[str, Any] = {}
        self._is_finding = False

    def start(self) -> None:
        """Make the directory and start the first process."""
        make_directory(self._directory, self._request.attempt)
        if self._request.find is None:
            self._run()
        else:
            self._find(self._request.find)

    def proceed(self, ended: Exit) -> TrialOutcome | None:
        """Hear that the process ended: start the next, or return the outcome."""
        if not self._is_finding:
            return self._finish(judge(ended, self._directory))
        self._is_finding = False
        if ended.exit_code != 0:
            return self._finish(judge(ended, self._directory), stage="finding the batch size: ")
        finding = json.loads((self._directory / _FINDING_FILE).read_text())
        if finding["microbatch"] is None:
            nothing = TrialOutcome(kind=ExitKind.OOM, seconds=ended.seconds, detail=f"nothing fits: {finding['note']}")
            return self._finish(nothing)
        self._effective = {self._request.find_key: finding["microbatch"]}
        self._run()
        return None

    def _find(self, asked: Mapping[str, Any]) -> None:
        self._is_finding = True
        (self._directory / _FIND_FILE).write_text(json.dumps(asked))
        self._host.start(self._job(call=_FIND, argument=_FIND_FILE, result=_FINDING_FILE))

    def _run(self) -> None:
        request = self._request
        config = merge(request.config, self._effective)
        with (self._directory / CONFIG_FILE).open("w", encoding="utf-8") as file:
            yaml.safe_dump(config, file, sort_keys=False, allow_unicode=True)
        job = self._job(call=request.function, argument=CONFIG_FILE, result=RESULT_FILE)
        if request.command is not None:
            job = dataclasses.replace(job, argv=fill_in(request.command, self._directory, request.trial_id), call=None)
        exit_file = str(self._directory / EXIT_FILE)
        self._host.start(dataclasses.replace(job, timeout_seconds=request.timeout_seconds, exit_file=exit_file))

    def _job(self, *, call: str | None, argument: str, result: str) -> Job:
        folder = self._directory
        environment = {
            "BRIM_TRIAL_ID": self._request.trial_id,
            "BRIM_TRIAL_DIR": str(folder),
            "BRIM_CONFIG": str(folder / CONFIG_FILE),
            "BRIM_RESULT": str(folder / RESULT_FILE),
        }
        return Job(
            name=self._request.trial_id,
            argv=None,
            call=call,
            argument=str(folder / argument),
            result=str(folder / result),
            directory=str(folder),
            workdir=self._request.workdir,
            environment={**self._environment, **environment},
            stamp=self._request.attempt,
        )

    def _finish(self, outcome: TrialOutcome, stage: str = "") -> TrialOutcome:
        detail = f"{stage}{outcome.detail}" if stage else outcome.detail
        return dataclasses.replace(outcome, effective=self._effective, where=self._where, detail=detail)


def run_trial(request: TrialRequest, *, directory: Path, environment: Mapping[str, str], where: str) -> TrialOutcome:
    """Run a trial to its end on a host of its own."""
    with TrialHost(is_detached=True) as host:
        run = TrialRun(request, directory=directory, host=host, environment=environment, where=where)
        run.start()
        while True:
            # Not for ever: who interrupts this process may be unable to interrupt a system call.
            for _, ended in host.ended(_PATIENCE_SECONDS):
                outcome = run.proceed(ended)
                if outcome is not None:
                    return outcome


def make_directory(directory: Path, attempt: int) -> None:
    """Make a trial's directory; what an earlier attempt said is put aside, so that it is not taken for this one's."""
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / LOG_FILE
    if log.exists():
        log.rename(log.with_suffix(f".{attempt - 1}.txt"))
    for left in (RESULT_FILE, FAILURE_FILE, EXIT_FILE, _FINDING_FILE):
        (directory / left).unlink(missing_ok=True)


def recall(directory: Path, attempt: int, find_key: str) -> TrialOutcome | None:
    """Return the outcome of an attempt that succeeded when nobody was left to be told of it."""
    try:
        noted = json.loads((directory / EXIT_FILE).read_text())
        found = directory / _FINDING_FILE
        effective = {find_key: json.loads(found.read_text())["microbatch"]} if found.exists() else {}
    except (OSError, ValueError):
        return None
    if noted.pop("stamp") != attempt:
        return None
    outcome = dataclasses.replace(judge(Exit(**noted), directory), effective=effective)
    # A failure is run again, and so is a success whose metrics did not reach the disk.
    return outcome if outcome.kind is ExitKind.DONE and outcome.metrics else None


def forget(directory: Path) -> None:
    """Remove the note that `recall` would read."""
    (directory / EXIT_FILE).unlink(missing_ok=True)
