"""The journal: what happened to every trial, one JSON object a line, on disk before it counts.

Only the sweep that holds the directory's lock writes. A line that was torn by a crash is cut off before the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from brim.errors import BrimError, DeviceError, InputError, RecordError
from brim.records import ANY, COUNT, TEXT, WHOLE, Each, Leaf, Maybe, check_record, one_of
from brim.sweeping.outcome import OUTCOME

JOURNAL_FILE = "journal.jsonl"
LOCK_FILE = "lock"
# How long the trials of a sweep that was killed may take to end.
_HANDOVER_SECONDS = 30.0
_POLL_SECONDS = 0.05
_HEXADECIMAL = frozenset("0123456789abcdef")
_EVENT = {
    "event": one_of("started", "ended", "skipped"),
    "trial": Leaf(
        "the id of a trial", lambda value: isinstance(value, str) and bool(value) and {*value} <= _HEXADECIMAL
    ),
    "config": Each(ANY),
}
_EVENTS = {
    "started": {**_EVENT, "attempt": COUNT, "effective": Each(ANY)},
    "ended": {
        **_EVENT,
        "attempt": COUNT,
        "outcome": OUTCOME,
        "again": Maybe(Each(ANY)),
        "found": Each(Maybe(WHOLE)),
    },
    "skipped": {**_EVENT, "status": TEXT, "detail": TEXT},
}


class Journal:
    """The one writer of a directory's journal; use it as a context manager."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / JOURNAL_FILE
        self._fd = -1

    def __enter__(self) -> Journal:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        self._cut_torn_line()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def write(self, event: str, *, sync: bool = True, **data: Any) -> None:
        """Append one event; with `sync`, return only when it is on disk."""
        line = (
            json.dumps({"event": event, "time": round(time.time(), 3), **data}, separators=(",", ":")).encode() + b"\n"
        )
        end = os.fstat(self._fd).st_size
        try:
            written = os.write(self._fd, line)
            if written < len(line):
                # A disk that fills up takes a part; writing the rest says why.
                os.write(self._fd, line[written:])
            if sync:
                os.fsync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, end)
            raise DeviceError(
                f"The journal {self._path} cannot be written: {error.strerror}. Make room and run the sweep again: "
                "what it holds stays, and trials that are not in it run again."
            ) from error

    def _cut_torn_line(self) -> None:
        size = os.fstat(self._fd).st_size
        tail_start = size
        while tail_start:
            step = min(4096, tail_start)
            tail_start -= step
            newline = os.pread(self._fd, step, tail_start).rfind(b"\n")
            if newline >= 0:
                tail_start += newline + 1
                break
        if tail_start < size:
            os.ftruncate(self._fd, tail_start)


def read_journal(directory: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a journal, oldest first; a torn last line is passed over."""
    path = directory / JOURNAL_FILE
    if path.exists():
        with path.open("rb") as file:
            for _, event in _events(file, path):
                yield event


def _events(file: BinaryIO, path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    for number, line in enumerate(file, start=1):
        if not line.endswith(b"\n"):
            return
        try:
            event = json.loads(line)
        except ValueError as error:
            raise InputError(f"Line {number} of {path} is not JSON: {error}. Mend or remove it.") from error
        yield line, event


@contextlib.contextmanager
def naming_lines(directory: Path) -> Iterator[None]:
    """Where an event proves to be of another shape, raise an error that names its line and field.

    Events are not held against their shapes before that: it would take several times as long as reading them.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, BrimError) and not isinstance(error, RecordError):
            raise
        for number, event in enumerate(read_journal(directory), start=1):
            _check_event(event, source=f"Line {number} of {directory / JOURNAL_FILE}")
        raise


def _check_event(event: Any, *, source: str) -> None:
    try:
        check_record(event, _EVENT)
        check_record(event, _EVENTS[event["event"]])
    except RecordError as error:
        raise error.told_of(source, "Mend or remove the line.") from error


class LastEvents:
    """The last event of every trial; only its place in the file is kept in memory."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._places: dict[int, int] = {}
        place = 0
        for line, event in _events(file, path):
            self._places[int(event["trial"], 16)] = place
            place += len(line)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the last event of each trial, in the order in which trials first appeared."""
        return map(self._read, self._places.values())

    def get(self, trial_id: str) -> dict[str, Any] | None:
        """Return the last event of a trial, or None."""
        place = self._places.get(int(trial_id, 16))
        return None if place is None else self._read(place)

    def _read(self, place: int) -> dict[str, Any]:
        self._file.seek(place)
        event: dict[str, Any] = json.loads(self._file.readline())
        return event


@contextlib.contextmanager
def last_events(directory: Path) -> Iterator[LastEvents]:
    """Yield the last event of every trial; none where there is no journal."""
    path = directory / JOURNAL_FILE
    with naming_lines(directory), path.open("rb") if path.exists() else io.BytesIO() as file:
        yield LastEvents(file, path)


@contextlib.contextmanager
def lock(directory: Path) -> Iterator[int]:
    """Hold a directory's lock and yield its descriptor; refuse where another sweep holds it.

    The lock belongs to the open file, so a descriptor that a child inherits keeps it. The trials' host does: the
    directory is free only when the last trial has ended, also after the sweep itself was killed.
    """
    fd = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        deadline = time.monotonic() + _HANDOVER_SECONDS
        while not _try_lock(fd):
            holder = os.pread(fd, 200, 0).decode(errors="replace").split()
            if _is_alive(holder) or time.monotonic() > deadline:
                who = f"process {holder[0]} on {holder[1]}" if len(holder) == 2 else "another process"
                raise InputError(f"{directory} is in use by another sweep ({who}). Wait for it, or use another --out.")
            time.sleep(_POLL_SECONDS)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()} {socket.gethostname()}".encode(), 0)
        yield fd
    finally:
        os.close(fd)


def is_locked(directory: Path) -> bool:
    """Return whether a sweep is at work in the directory."""
    try:
        fd = os.open(directory / LOCK_FILE, os.O_RDWR)
    except OSError:
        return False
    try:
        return not _try_lock(fd)
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_alive(holder: list[str]) -> bool:
    """Whether the process that took the lock still runs; on another machine it is taken to."""
    if len(holder) != 2 or not holder[0].isdigit():
        return False
    if holder[1] != socket.gethostname():
        return True
    try:
        return psutil.Process(int(holder[0])).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
