"""One run of a command as it is on phantom GPUs: nothing limits it but what it is asked for, and Ctrl-C."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

from brim.devices.catalog import Gpu
from brim.folders import TemporaryFolder
from brim.hooking import hooked_environment
from brim.phantom import Phantoms
from brim.probing.gathering import Folders, fewest_steps, keep_snapshots, notes_of, read_taken, without_a_context
from brim.probing.phantoms import remarks_of
from brim.probing.scripts.job import Watch
from brim.probing.scripts.kept import Kept, Stream
from brim.probing.scripts.records import Record, all_done, read_records
from brim.probing.taken import End, Run

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


def run_once(once: Once, *, show: Callable[[Progress], None] | None = None) -> Run:
    """Run a command to its end, its steps or Ctrl-C, and return what it took; call it in the main thread.

    Args:
        once: What to run.
        show: Called often while it runs.

    Raises:
        InputError: There is no torch with CUDA.
    """
    with Phantoms(once.gpus, words=once.words) as machine, TemporaryFolder("run") as name:
        folders = Folders(Path(name))
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
        notes = notes_of(folders, num_left=told.get("num_left", 0))
        num_steps = fewest_steps(records)
        snapshots = [] if once.snapshot is None else keep_snapshots(folders, once.snapshot)
        if once.snapshot is not None and not snapshots:
            notes.append("No snapshot was written: no process that used the GPU came to its own end.")
        if once.steps is not None and ended is End.ITSELF:
            notes.append(f"The command ended by itself after {num_steps:,} of {once.steps:,} steps.")
        return Run(
            words=once.words,
            gpus=once.gpus,
            torch=machine.torch.version,
            ended=ended,
            exit_code=told.get("exit_code") if ended is not End.STEPS else None,
            seconds=time.monotonic() - started,
            kind=next((record.kind for record in records if record.steps), None),
            num_steps=num_steps,
            taken=read_taken(machine, records, folders),
            peaks_bytes=[machine.account.peak_bytes(device) for device in range(len(once.gpus))],
            remarks=(*remarks_of(machine), *without_a_context(once.gpus, machine), *notes),
            snapshots=snapshots,
        )


def _environment(once: Once, machine: Phantoms, folders: Folders) -> dict[str, str]:
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
    folders: Folders,
    interrupts: _Interrupts,
    show: Callable[[Progress], None] | None,
) -> End:
    """Wait for the end of a command, and return what it was."""
    leave_at = None
    while not job.wait(_POLL_SECONDS):
        records = read_records(folders.records)
        if once.steps is not None and records and all_done(records):
            return End.STEPS
        if show is not None:
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
        num_steps=fewest_steps(records),
    )
