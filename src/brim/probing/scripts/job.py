"""One run of a command from outside: starts it below a keeper, reads the records of its ranks, and ends it."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.devices.cpu import num_oom_kills
from brim.folders import TemporaryFolder
from brim.hooking import hook_failure, hooked_environment
from brim.probing.merging import is_from_peer
from brim.probing.scripts.kept import Kept
from brim.probing.scripts.records import Ended, all_done, read_records

_POLL_SECONDS = 0.05
# How long the other ranks and the launcher may take to say how they failed, after the first did.
_LAST_WORDS_SECONDS = 2.0
# How long a launcher may take to say which rank died, after others have lost their connection to it.
_LAUNCHER_SECONDS = 10.0
_LOG_TAIL_BYTES = 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What the witness in every process of the job is told.

    Attributes:
        steps: How many whole steps to run.
        device: `cpu` or `cuda`.
        limits_bytes: What each rank of this machine may use, by its local rank; the last holds for all others.
    """

    steps: int
    device: str
    limits_bytes: tuple[int, ...]

    def environment(self, folder: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of a watched command; `base` is the one that it would have without."""
        settings = {"steps": self.steps, "device": self.device, "limits_bytes": list(self.limits_bytes)}
        environment = hooked_environment("brim.probing.scripts.witness", settings, folder=folder, base=base)
        return {**environment, "PYTHONUNBUFFERED": "1"}


def run_job(
    words: Sequence[str],
    *,
    watch: Watch,
    log: Path,
    timeout_seconds: float,
    say: Callable[[str], None],
    base: Mapping[str, str] | None = None,
    cancelled: threading.Event | None = None,
) -> Ended:
    """Run a command until its ranks have done their steps, one has failed, it ends, or nothing moves any more.

    Args:
        words: The command.
        watch: What its processes are told.
        log: Takes everything the command prints.
        timeout_seconds: How long it may go without getting on: another process that has imported torch, a forward pass,
            a step.
        say: Called with the last line that the command printed, whenever there is a new one.
        base: The environment that the command would have without the watch; None for this process's.
        cancelled: Ends the command early once it is set.
    """
    kills_before = num_oom_kills()
    with TemporaryFolder("probe") as name, log.open("wb") as output:
        folder = Path(name)
        job = Kept(
            words,
            environment=watch.environment(folder, base),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            is_hung = _wait(job, folder, log, timeout_seconds, say, cancelled or threading.Event())
        finally:
            told = job.end()
        kills_after = num_oom_kills()
        return Ended(
            records=tuple(read_records(folder)),
            exit_code=told.get("exit_code"),
            num_left=told.get("num_left", 0),
            is_hung=is_hung,
            is_host_full=kills_before is not None and (kills_after or 0) > kills_before,
            log_tail=log_tail(log),
            hook_failure=hook_failure(folder),
        )


def log_tail(log: Path) -> str:
    """Return the last lines of a log."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        return file.read().decode(errors="replace")


def _wait(
    job: Kept,
    folder: Path,
    log: Path,
    timeout_seconds: float,
    say: Callable[[str], None],
    cancelled: threading.Event,
) -> bool:
    """Wait for the end of the job; True when nothing moved for too long."""
    moved: tuple[Any, ...] = ()
    moved_at, failed_at, said = time.monotonic(), None, 0
    while not job.wait(_POLL_SECONDS) and not cancelled.is_set():
        records = read_records(folder)
        now = time.monotonic()
        if records and all_done(records):
            return False
        if not records and hook_failure(folder) is not None:
            return False  # nobody will see a step
        failures = [record.failure["detail"] for record in records if record.failure]
        if failures:
            failed_at = failed_at or now
            is_lost = all(map(is_from_peer, failures))
            if now - failed_at > (_LAUNCHER_SECONDS if is_lost else _LAST_WORDS_SECONDS):
                return False
        steps = tuple((record.pid, record.steps, *sorted(record.calls.items())) for record in records)
        progress = (len(list(folder.glob("*.torch"))), *steps)
        if progress != moved:
            moved, moved_at = progress, now
        elif now - moved_at > timeout_seconds:
            return True
        if log.stat().st_size != said:
            said = log.stat().st_size
            say(_last_line(log_tail(log)))
    return False


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.replace("\r", "\n").splitlines()) if line.strip()), "").strip()
