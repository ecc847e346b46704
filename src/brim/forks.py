"""Calls in processes forked for them: as fresh as this one, in which nothing ran yet but imports."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.groups import die_with_parent, kill_descendants

_PIPE_BYTES = 65536
# How many times as long as it may take a call may wait for a processor.
_MOST_WAITING = 2


@dataclass(frozen=True, slots=True)
class Fork:
    """A process that runs one call and writes what that returns, as JSON."""

    pid: int
    read_end: int

    @classmethod
    def start(cls, call: Callable[[], Any]) -> Fork:
        """Run a call in a process of its own; it is waited for by `result` alone."""
        read_end, write_end = os.pipe()
        parent_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                die_with_parent(parent_pid)
                os.close(read_end)
                os.write(write_end, json.dumps(_result(call)).encode())
            finally:
                os._exit(0)
        os.close(write_end)
        return cls(pid, read_end)

    def result(self, *, seconds: float | None = None) -> Any:
        """Return what the call returned, or a problem: it raised, its process died or took too many seconds.

        Args:
            seconds: How long it may take from now on a machine that is not busy: what it waits for a processor that
                others have is not counted, up to as long again and again.
        """
        try:
            if not self._ends_within(seconds):
                self._kill()
                return {"problem": f"no result within {seconds:g} s"}
            text = b"".join(iter(lambda: os.read(self.read_end, _PIPE_BYTES), b""))
            return json.loads(text) if text else {"problem": "the process died"}
        finally:
            os.close(self.read_end)
            os.waitpid(self.pid, 0)

    def _ends_within(self, seconds: float | None) -> bool:
        if seconds is None:
            return True
        started, waited = time.monotonic(), self._waited_seconds()
        left = seconds
        while left > 0:
            if select.select([self.read_end], [], [], left)[0]:
                return True
            allowed = seconds + min(self._waited_seconds() - waited, _MOST_WAITING * seconds)
            left = allowed - (time.monotonic() - started)
        return False

    def _waited_seconds(self) -> float:
        """Return how long the process has been ready to run and did not; 0 where the kernel does not count that."""
        try:
            fields = Path(f"/proc/{self.pid}/schedstat").read_text().split()
        except OSError:
            return 0.0
        return int(fields[1]) / 1e9

    def _kill(self) -> None:
        """End the process and what it started, such as a compiler."""
        kill_descendants(self.pid)
        os.kill(self.pid, signal.SIGKILL)


def _result(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # noqa: BLE001  whatever it is, only its words leave this process
        return {"problem": f"{type(error).__name__}: {error}"}


def in_forks(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Return what each call returns in a process forked for it, all at the same time."""
    return [fork.result() for fork in [Fork.start(call) for call in calls]]
