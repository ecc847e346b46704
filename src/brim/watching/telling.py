"""Inside a watched job: steps and memory of one process, told to the `brim watch` that runs it.

The start-up hook sees the steps of torch's optimizers; `brim.log_step` tells of those that it cannot see.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from brim.devices.cpu import peak_resident_bytes
from brim.probing.scripts.records import write_record

# The folder in which each process of a watched job has a file; set by `brim watch`, and in no other run.
ENVIRONMENT = "BRIM_WATCH_FOLDER"
# How often a process writes, whatever it does: a step may take a millisecond. A choice.
_WRITE_EVERY_SECONDS = 0.5
# So many times of steps are enough for a median.
_NUM_TIMES = 1_000


def log_step() -> None:
    """Say that a step is done; call it at the end of each. Without `brim watch` it does nothing.

    `brim watch` sees the steps of torch's optimizers by itself. This is for others: an evaluation, weights that are
    updated by hand, an optimizer that is none of torch's. From the first call on these steps alone are counted.
    """
    folder = os.environ.get(ENVIRONMENT)
    if folder:
        diary(Path(folder)).tell_step()


def diary(folder: Path) -> Diary:
    """Return the diary of this process; a forked one begins its own."""
    if _Own.diary is None:
        atexit.register(_close)
    if _Own.diary is None or _Own.diary.pid != os.getpid():
        _Own.diary = Diary(folder)
    return _Own.diary


class _Own:
    diary: Diary | None = None


def _close() -> None:
    if _Own.diary is not None and _Own.diary.pid == os.getpid():
        _Own.diary.write()


class StepTimes:
    """Times of steps; of a long run every second, fourth … is kept, so that the kept ones span it evenly."""

    def __init__(self) -> None:
        self._kept: list[float] = []
        self._stride = 1
        self._num_added = 0

    def add(self, seconds: float) -> None:
        """Take the time of one more step."""
        if self._num_added % self._stride == 0:
            self._kept.append(seconds)
        self._num_added += 1
        if len(self._kept) == 2 * _NUM_TIMES:
            self._kept, self._stride = self._kept[::2], self._stride * 2

    def median(self) -> float | None:
        """Return the median; None before the first."""
        return statistics.median(self._kept) if self._kept else None


class Diary:
    """What one process did, kept in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.pid = os.getpid()
        self._folder = folder
        self._written_at = 0.0
        self._is_told = False
        self._ooms: list[str] = []
        self._begin()

    def _begin(self) -> None:
        self._num_steps = 0
        self._times = StepTimes()
        self._last: float | None = None

    def see_step(self) -> None:
        """Count a step that the hook saw, unless the job tells of its steps itself."""
        if not self._is_told:
            self._count()

    def tell_step(self) -> None:
        """Count a step that the job told of."""
        if not self._is_told:
            self._is_told = True
            self._begin()
        self._count()

    def see_oom(self, text: str) -> None:
        """Note an out-of-memory error."""
        self._ooms.append(text)
        self.write()

    def write(self) -> None:
        """Write everything so far, so that no reader ever sees half of it."""
        self._written_at = time.perf_counter()
        record = {
            "pid": self.pid,
            "rank": int(os.environ.get("RANK", "0")),
            "num_steps": self._num_steps,
            "step_seconds": self._times.median(),
            "host_peak_bytes": peak_resident_bytes(),
            "oom_errors": self._ooms,
            **_allocator(),
        }
        write_record(self._folder, record)

    def _count(self) -> None:
        now = time.perf_counter()
        self._num_steps += 1
        if self._last is not None:
            self._times.add(now - self._last)
        self._last = now
        if now - self._written_at > _WRITE_EVERY_SECONDS:
            self.write()


def _allocator() -> dict[str, Any]:
    """Return the counts of torch's CUDA allocator over all devices; nothing where CUDA is not in use."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    with contextlib.suppress(RuntimeError):  # after an illegal access CUDA answers nothing any more
        devices = range(torch.cuda.device_count())  # a job may use another one than the current
        counts = [torch.cuda.memory_stats(device) for device in devices]
        return {
            "allocator_retries": sum(each.get("num_alloc_retries", 0) for each in counts),
            "ooms": sum(each.get("num_ooms", 0) for each in counts),
            "reserved_bytes": max(each.get("reserved_bytes.all.peak", 0) for each in counts),
        }
    return {}
