"""A job that is watched: its processes, its output, its memory, and how it ended."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

import psutil

from brim.devices.cpu import num_oom_kills
from brim.errors import InputError
from brim.folders import TemporaryFolder
from brim.hooking import hooked_environment
from brim.probing.output import means_memory, tells_of_recovery
from brim.watching.samples import DeviceSample
from brim.watching.telling import ENVIRONMENT
from brim.watching.told import Told, read_told

# What the start-up hook calls in every process of the job that imports torch.
ONLOOKER = "brim.watching.onlooker"
Output = Callable[[str, bytes], None]
_CHUNK_BYTES = 65_536
# After Ctrl-C, which reaches the job as well, it is left alone for so long, then asked to end, then killed.
_LEAVE_SECONDS = 10.0
_GRACE_SECONDS = 20.0
# A process that the job left running keeps its output open; it is not waited for.
_DRAIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What was seen of a job.

    Attributes:
        exit_code: Negative for a signal.
        host_peak_bytes: The most memory that its processes had on the host at once, as sampled, or that the largest of
            them had, as the kernel counts; None where it ended before it was seen.
        gpu_peak_bytes: The most that it held of one GPU, as sampled or as its allocator told; None where there is none.
        oom_lines: Lines of its output that say that memory ran out.
        was_oom_killed: Whether it was killed while the kernel killed for lack of memory.
    """

    exit_code: int
    seconds: float
    host_peak_bytes: int | None
    gpu_peak_bytes: int | None
    oom_lines: tuple[str, ...]
    was_oom_killed: bool
    told: Told


class Lines:
    r"""Chunks of output as lines; a carriage return, as progress bars write it, ends one too.

    >>> lines = Lines()
    >>> lines.add(b"50%\r100%\ndo"), lines.add(b"ne"), lines.add(b"")
    (['50%', '100%'], [], ['done'])
    """

    def __init__(self) -> None:
        self._rest = b""

    def add(self, chunk: bytes) -> list[str]:
        """Return the lines that a chunk completes; an empty chunk is the end and completes the last."""
        *whole, self._rest = re.split(rb"\r\n|\r|\n", self._rest + chunk)
        if not chunk and self._rest:
            whole, self._rest = [*whole, self._rest], b""
        return [line.decode(errors="replace") for line in whole]


class Job:
    """A command and all that it starts; use it as a context manager.

    Args:
        command: The program and its arguments.
        output: Is given every chunk that the job prints, with `stdout` or `stderr`; an empty one is the end.
    """

    def __init__(self, command: Sequence[str], *, output: Output) -> None:
        self._command = list(command)
        self._output = output
        self._oom_lines: list[str] = []
        self._host_peak_bytes = 0
        self._gpu_peak_bytes = 0

    def __enter__(self) -> Job:
        self._folder = TemporaryFolder("watch")
        self._oom_kills_before = num_oom_kills() or 0
        self._started = time.monotonic()
        environment = hooked_environment(ONLOOKER, {}, folder=Path(self._folder.name))
        environment[ENVIRONMENT] = self._folder.name
        environment.setdefault("PYTHONUNBUFFERED", "1")
        try:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
            )
        except OSError as error:
            self._folder.cleanup()
            raise InputError(f"{self._command[0]} cannot be started: {error.strerror}.") from error
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True)
            for name, stream in (("stdout", self._process.stdout), ("stderr", self._process.stderr))
        ]
        for reader in self._readers:
            reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._end()
        for reader in self._readers:
            reader.join(timeout=_DRAIN_SECONDS)
        self._folder.cleanup()

    @property
    def pids(self) -> set[int]:
        """The job's processes that run now."""
        try:
            process = psutil.Process(self._process.pid)
            return {process.pid, *(child.pid for child in process.children(recursive=True))}
        except psutil.Error:
            return set()

    @property
    def told(self) -> Told:
        """What the job has told of itself so far."""
        return read_told(Path(self._folder.name))

    def wait(self, seconds: float) -> bool:
        """Wait at most so long and return whether the job has ended."""
        try:
            self._process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def observe(self, gpus: Sequence[DeviceSample]) -> tuple[int, int]:
        """Note what the job holds now of the host and the most that it holds of a GPU, and return both."""
        pids = self.pids
        held = [_memory_of(pid) for pid in pids]
        now_bytes = sum(rss for rss, _ in held)
        self._host_peak_bytes = max(self._host_peak_bytes, now_bytes, *(most for _, most in held), 0)
        on_gpus = [sum(each.used_bytes or 0 for each in gpu.processes if each.pid in pids) for gpu in gpus]
        on_gpu_bytes = max(on_gpus, default=0)
        self._gpu_peak_bytes = max(self._gpu_peak_bytes, on_gpu_bytes)
        return now_bytes, on_gpu_bytes

    def ended(self) -> Observed:
        """Return what was seen, once the job has ended."""
        code = self._process.wait()
        for reader in self._readers:
            reader.join(timeout=_DRAIN_SECONDS)
        told = self.told
        # The kernel's own count for the largest process that was waited for, exact where sampling was too slow. It
        # includes the moment before the job's program began, when it was a copy of this process.
        counted_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        if counted_bytes <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024:
            counted_bytes = 0
        killed = code == -signal.SIGKILL and (num_oom_kills() or 0) > self._oom_kills_before
        return Observed(
            exit_code=code,
            seconds=time.monotonic() - self._started,
            host_peak_bytes=max(self._host_peak_bytes, told.host_peak_bytes, counted_bytes) or None,
            gpu_peak_bytes=max(self._gpu_peak_bytes, told.reserved_bytes or 0) or None,
            oom_lines=tuple(self._oom_lines),
            was_oom_killed=killed,
            told=told,
        )

    def _read(self, name: str, stream: IO[bytes]) -> None:
        lines = Lines()
        has_ended = False
        while not has_ended:
            chunk = os.read(stream.fileno(), _CHUNK_BYTES)
            has_ended = not chunk
            self._output(name, chunk)
            told = [line.strip() for line in lines.add(chunk)]
            self._oom_lines += [line for line in told if means_memory(line) or tells_of_recovery(line)]
        stream.close()

    def _end(self) -> None:
        if self.wait(_LEAVE_SECONDS):
            return
        self._process.terminate()
        if not self.wait(_GRACE_SECONDS):
            for pid in self.pids:
                with contextlib.suppress(psutil.Error):
                    psutil.Process(pid).kill()
            self._process.wait()


def _memory_of(pid: int) -> tuple[int, int]:
    """Return what a process holds now and the most that it ever held, as the kernel counts."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    kibibytes = {key: value.split()[0] for key, _, value in (line.partition(":") for line in lines) if value.strip()}
    return int(kibibytes.get("VmRSS", 0)) * 1024, int(kibibytes.get("VmHWM", 0)) * 1024
