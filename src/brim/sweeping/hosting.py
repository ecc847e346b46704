"""The host from outside: starts it, asks it for processes, and hears how they ended."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from types import TracebackType
from typing import Any

from brim.errors import DeviceError
from brim.sweeping.host import DETACHED
from brim.sweeping.jobs import Job
from brim.sweeping.outcome import Exit

# What a host may take to end its trials when it is closed: killing is quick, a hanging file system is not.
_CLOSING_SECONDS = 30.0


class TrialHost:
    """A host of one's own; everything below it ends with `close`, or with this process.

    Args:
        held_fds: Descriptors that stay open until the last trial has ended, such as the lock of a directory.
        is_detached: Whether the host is nobody's child: some parents kill theirs before these can tidy up.
    """

    def __init__(self, *, held_fds: tuple[int, ...] = (), is_detached: bool = False) -> None:
        request_read, self._request_fd = os.pipe()
        self._event_fd, event_write = os.pipe()
        fds = (request_read, event_write, *held_fds)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "brim.sweeping.host", ",".join(map(str, fds)), *([DETACHED] if is_detached else [])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=fds,
            start_new_session=True,  # Ctrl-C is for the sweep, which then says what to do
        )
        os.close(request_read)
        os.close(event_write)
        if is_detached:
            self._process.wait()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._event_fd, selectors.EVENT_READ)
        self._buffer = b""

    def __enter__(self) -> TrialHost:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def start(self, job: Job) -> None:
        """Start a process."""
        self._ask({"do": "start", "job": job.to_json()})

    def end(self, name: str) -> None:
        """Ask a process to end, and end it where it does not; one that has ended is no error."""
        self._ask({"do": "end", "name": name})

    def ended(self, timeout_seconds: float | None) -> list[tuple[str, Exit]]:
        """Return the processes that ended, after at most so long; None waits for one."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while b"\n" not in self._buffer:
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._selector.select(remaining):
                return []
            data = os.read(self._event_fd, 1 << 16)
            if not data:
                raise DeviceError("The host of the trials died. Run the sweep again.")
            self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        events: list[dict[str, Any]] = [json.loads(line) for line in lines]
        return [(event.pop("name"), Exit(**event)) for event in events]

    def close(self) -> None:
        """End everything and wait until it has ended."""
        if self._request_fd < 0:
            return
        os.close(self._request_fd)
        self._request_fd = -1
        deadline = time.monotonic() + _CLOSING_SECONDS
        # Its end of the pipe closes with the host, whoever's child it is.
        while self._selector.select(max(0.0, deadline - time.monotonic())) and os.read(self._event_fd, 1 << 16):
            pass
        if self._process.poll() is None and time.monotonic() > deadline:
            self._process.kill()
        self._process.wait()
        self._selector.close()
        os.close(self._event_fd)

    def _ask(self, request: dict[str, Any]) -> None:
        try:
            os.write(self._request_fd, (json.dumps(request) + "\n").encode())
        except BrokenPipeError as error:
            raise DeviceError("The host of the trials died. Run the sweep again.") from error
