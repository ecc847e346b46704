"""One run of a command as it is on phantom GPUs: nothing limits it but what it is asked for, and Ctrl-C."""

from __future__ import annotations

import json
import math
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from brim.devices.catalog import Gpu
from brim.hooking import hook_failure, hooked_environment
from brim.phantom import Held, Phantoms
from brim.phantom.account import Usage
from brim.probing.phantoms import remarks_of
from brim.probing.scripts.job import Watch
from brim.probing.scripts.kept import Kept, Stream
from brim.probing.scripts.records import Record, all_done, read_records
from brim.probing.taken import End, Refused, Run, Taken
from brim.units import format_bytes

_POLL_SECONDS = 0.05
# After Ctrl-C a command is left alone for so long.
_LEAVE_SECONDS = 10.0
# What comes again sooner is the same: timeout(1) sends a signal to brim and then to its whole group.
_AGAIN_SECONDS = 1.0
_LIKE_CTRL_C = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REFUSALS, _SNAPSHOT = "brim.phantom.attached.refusals", "brim.phantom.attached.snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A run at one moment: its fullest device.

    Attributes:
        used_bytes: By all processes.
        num_steps: Whole steps of the rank that did fewest.
    """

    device: int
    gpu: Gpu
    used_bytes: int
    peak_bytes: int
    num_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Once:
    """What is to be run.

    Attributes:
        words: The command.
        gpus: What it sees.
        steps: After how many whole steps it is ended; None to let it run.
        stdout: Where it prints.
        snapshot: Where torch's own snapshot goes, with the rank in its name where there are several.
    """

    words: Sequence[str]
    gpus: Sequence[Gpu]
    steps: int | None = None
    stdout: Stream = None
    snapshot: Path | None = None


def run_once(once: Once, *, show: Callable[[Progress], None] = lambda progress: None) -> Run:
    """Run a command to its end, its steps or Ctrl-C, and return what it took; call it in the main thread.

    Args:
        once: What to run.
        show: Called often while it runs.

    Raises:
        InputError: There is no torch with CUDA.
    """
    with Phantoms(once.gpus, words=once.words) as machine, tempfile.TemporaryDirectory(prefix="brim-run-") as name:
        folders = _Folders(Path(name))
        started = time.monotonic()
        job = Kept(
            once.words,
            environment=_environment(once, machine, folders),
            stdin=None,
            stdout=once.stdout,
            stderr=None,
            has_terminal=True,
        )
        with _Interrupts() as interrupts:
            try:
                ended = _wait(job, once, machine, folders, interrupts, show)
            finally:
                told = job.end()
        records = read_records(folders.records)
        num_left = told.get("num_left", 0)
        return Run(
            words=once.words,
            gpus=once.gpus,
            torch=machine.torch.version,
            ended=ended,
            exit_code=told.get("exit_code") if ended is not End.STEPS else None,
            seconds=time.monotonic() - started,
            kind=next((record.kind for record in records if record.steps), None),
            num_steps=_num_steps(records),
            taken=_taken(machine, records, folders.refusals),
            peaks_bytes=[machine.account.peak_bytes(device) for device in range(len(once.gpus))],
            remarks=(
                *remarks_of(machine),
                *_without_a_context(once.gpus, machine),
                *_remarks(once, ended, records, num_left, folders),
            ),
            snapshots=[] if once.snapshot is None else _keep_snapshots(folders.snapshots, once.snapshot),
        )


class _Folders:
    """Where the hooked modules of a job write."""

    def __init__(self, folder: Path) -> None:
        self.records, self.refusals, self.snapshots = (folder / name for name in ("records", "refusals", "snapshots"))
        for each in (self.records, self.refusals, self.snapshots):
            each.mkdir()


def _environment(once: Once, machine: Phantoms, folders: _Folders) -> dict[str, str]:
    environment = hooked_environment(_REFUSALS, {}, folder=folders.refusals, base=machine.environment())
    if once.snapshot is not None:
        environment = hooked_environment(_SNAPSHOT, {}, folder=folders.snapshots, base=environment)
    # The witness comes last: when all steps are done, it stays where it is.
    limits_bytes = tuple(gpu.memory_bytes for gpu in once.gpus)
    watch = Watch(steps=once.steps or sys.maxsize, device="phantom", limits_bytes=limits_bytes)
    return watch.environment(folders.records, environment)


class _Interrupts:
    """Counts Ctrl-C, and what schedulers send, in place of ending brim at once."""

    def __init__(self) -> None:
        self.count = 0
        self._heard_at = -math.inf

    def __enter__(self) -> _Interrupts:
        # What is ignored, as by nohup, stays ignored.
        heard = [each for each in _LIKE_CTRL_C if signal.getsignal(each) != signal.SIG_IGN]
        self._previous = {each: signal.signal(each, self._hear) for each in heard}
        return self

    def _hear(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        self.count += now - self._heard_at > _AGAIN_SECONDS
        self._heard_at = now

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each, handler in self._previous.items():
            signal.signal(each, handler)


def _wait(
    job: Kept,
    once: Once,
    machine: Phantoms,
    folders: _Folders,
    interrupts: _Interrupts,
    show: Callable[[Progress], None],
) -> End:
    """Wait for the end of a command, and return what it was."""
    leave_at = None
    while not job.wait(_POLL_SECONDS):
        records = read_records(folders.records)
        if once.steps is not None and records and all_done(records):
            return End.STEPS
        show(_progress(once.gpus, machine, records))
        if interrupts.count and leave_at is None:
            job.interrupt()
            leave_at = time.monotonic() + _LEAVE_SECONDS
        if leave_at is not None and (interrupts.count > 1 or time.monotonic() > leave_at):
            break
    return End.INTERRUPT if interrupts.count else End.ITSELF


def _progress(gpus: Sequence[Gpu], machine: Phantoms, records: Sequence[Record]) -> Progress:
    peaks = [machine.account.peak_bytes(device) for device in range(len(gpus))]
    fullest = max(range(len(gpus)), key=lambda device: peaks[device] / gpus[device].memory_bytes)
    return Progress(
        device=fullest,
        gpu=gpus[fullest],
        used_bytes=machine.account.used_bytes(fullest),
        peak_bytes=peaks[fullest],
        num_steps=_num_steps(records),
    )


def _num_steps(records: Sequence[Record]) -> int:
    return min((record.steps for record in records if record.steps), default=0)


def _taken(machine: Phantoms, records: Sequence[Record], refusals: Path) -> list[Taken]:
    """Return what every process took of every device, in the order of ranks."""
    held = {(each.pid, each.device): each for each in machine.held()}
    told = {int(path.stem): json.loads(path.read_text()) for path in refusals.glob("*.json")}
    ranks = {record.pid: record.rank for record in records if record.num_ranks > 1}
    taken = [
        _one(usage, held.get((usage.pid, usage.device)), told.get(usage.pid, {}), ranks.get(usage.pid))
        for usage in machine.account.usages()
    ]
    return sorted(taken, key=lambda each: (each.rank is None, each.rank or 0, each.pid, each.device))


def _one(usage: Usage, held: Held | None, told: Mapping[str, Any], rank: int | None) -> Taken:
    own = told.get("devices", {}).get(str(usage.device), {})
    refused = None
    if usage.refused_bytes:
        refused = Refused(asked_bytes=usage.refused_bytes, line=own.get("line"), held=held.refused if held else None)
    return Taken(
        pid=usage.pid,
        device=usage.device,
        rank=told.get("rank") if rank is None else rank,
        allocated_bytes=usage.allocated_peak_bytes,
        reserved_bytes=usage.reserved_peak_bytes,
        device_bytes=usage.peak_bytes,
        pinned_bytes=usage.pinned_peak_bytes,
        num_retries=own.get("num_retries"),
        held=held.peak if held else None,
        refused=refused,
    )


def _remarks(once: Once, ended: End, records: Sequence[Record], num_left: int, folders: _Folders) -> list[str]:
    """Return what else to know of a run."""
    said = []
    failure = next(filter(None, map(hook_failure, (folders.refusals, folders.snapshots, folders.records))), None)
    if failure is not None:
        said.append(f"brim could not look into the command's Python: {failure.strip().splitlines()[-1]}.")
    if num_left:
        said.append(f"The command ended while {num_left} of its processes still ran, and these were ended.")
    if once.steps is not None and ended is End.ITSELF:
        said.append(f"The command ended by itself after {_num_steps(records):,} of {once.steps:,} steps.")
    return said


def _without_a_context(gpus: Sequence[Gpu], machine: Phantoms) -> list[str]:
    """Return which devices had no room even for what the driver keeps there for a process."""
    return [
        f"Process {usage.pid} could not begin to use cuda:{usage.device}: the driver's context alone does not fit into "
        f"what was free of {format_bytes(gpus[usage.device].memory_bytes)}."
        for usage in machine.account.usages()
        if usage.num_refused and not usage.peak_bytes
    ]


def _keep_snapshots(found: Path, target: Path) -> list[Path]:
    """Move the snapshots of all processes to where they were asked for."""
    written = sorted(found.glob("*.pickle"))
    kept = []
    for path in written:
        pid, _, rank = path.stem.partition("-")
        part = f".rank{rank}" if rank else f".{pid}"
        goal = target if len(written) == 1 else target.with_name(f"{target.stem}{part}{target.suffix}")
        kept.append(Path(shutil.move(path, goal)))
    return kept
