"""What the processes of a watched job told of themselves, read from outside."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from brim.hooking import hook_failure


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTold:
    """One process that imported torch or told of its steps.

    Attributes:
        step_seconds: The median time from one step's end to the next's; None before the second.
        host_peak_bytes: The most memory that it had on the host, as the kernel counts.
        allocator_retries: As torch counts them on CUDA, and so `ooms`; None where it did not use CUDA.
        reserved_bytes: The most that torch's allocator held of a GPU.
        oom_errors: Errors that ended it and mean memory.
    """

    pid: int
    rank: int = 0
    num_steps: int = 0
    step_seconds: float | None = None
    host_peak_bytes: int | None = None
    allocator_retries: int | None = None
    ooms: int | None = None
    reserved_bytes: int | None = None
    oom_errors: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the process as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a job said of itself.

    Attributes:
        processes: In the order of their ranks.
        hook_failure: Why brim could not look into the job; None where it could.
    """

    processes: tuple[ProcessTold, ...] = ()
    hook_failure: str | None = None

    @property
    def workers(self) -> tuple[ProcessTold, ...]:
        """The processes that made steps: not launchers, nor loaders of data."""
        return tuple(process for process in self.processes if process.num_steps)

    @property
    def num_steps(self) -> int:
        """The steps of the process that made most."""
        return max((process.num_steps for process in self.processes), default=0)

    @property
    def step_seconds(self) -> float | None:
        """The median time of a step over processes; None where none was told."""
        seconds = [each.step_seconds for each in self.processes if each.step_seconds is not None]
        return median(seconds) if seconds else None

    @property
    def allocator_retries(self) -> int | None:
        """Over all processes; None where CUDA was not used."""
        return _total(process.allocator_retries for process in self.processes)

    @property
    def ooms(self) -> int | None:
        """As torch counts them on CUDA, over all processes; None where CUDA was not used."""
        return _total(process.ooms for process in self.processes)

    @property
    def oom_errors(self) -> tuple[str, ...]:
        """Errors that ended a process and mean memory."""
        return tuple(text for process in self.processes for text in process.oom_errors)

    @property
    def host_peak_bytes(self) -> int:
        """The most memory that one process had on the host; 0 where none told."""
        return max((each.host_peak_bytes or 0 for each in self.processes), default=0)

    @property
    def reserved_bytes(self) -> int | None:
        """The most that torch's allocator held in one process; None where CUDA was not used."""
        return max((each.reserved_bytes for each in self.processes if each.reserved_bytes is not None), default=None)


def read_told(folder: Path) -> Told:
    """Return what the processes of a job have told so far."""
    records = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    processes = [ProcessTold(**{**record, "oom_errors": tuple(record["oom_errors"])}) for record in records]
    failure = hook_failure(folder)
    return Told(
        processes=tuple(sorted(processes, key=lambda process: (process.rank, process.pid))),
        hook_failure=None if failure is None else failure.strip().splitlines()[-1],
    )


def _total(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
