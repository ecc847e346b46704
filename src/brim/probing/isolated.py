"""Probes in child processes: starts the server, asks, waits, and turns what came back into a verdict."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from brim import errors
from brim.cases import Case
from brim.devices import Device
from brim.devices.cpu import num_oom_kills
from brim.errors import InputError, WorkloadError
from brim.findings import Probe, Race, Verdict
from brim.folders import TemporaryFolder
from brim.groups import PROBING_VARIABLE, kill_descendants, kill_group, signal_name
from brim.probing.mixing import Mix
from brim.probing.outcome import Outcome, Traced, outcome_from
from brim.probing.server_log import ServerLog

# How long a probe may go without reaching its next phase or step, unless the user says otherwise.
DEFAULT_TIMEOUT_SECONDS = 600.0
# How long tracing may take before the search goes on without it.
TRACE_SECONDS = 120.0
_GRACE_SECONDS = 10.0


@dataclass(slots=True)
class _Reply:
    """Everything heard from one request."""

    message: dict[str, Any] | None = None
    phase: str = "build"
    progress: Counter[int] = field(default_factory=Counter)
    exit_code: int | None = None
    hung: bool = False


class IsolatedProber:
    """Runs every probe in a fresh process, or on several ranks where there are several limits; leaves none behind."""

    def __init__(
        self,
        address: str,
        device: Device,
        *,
        limits_bytes: tuple[int, ...] = (),
        timeout_seconds: float | None = None,
        rendezvous: Mapping[str, Any] | None = None,
    ) -> None:
        self._address = address
        self._device = device
        self._rendezvous = rendezvous
        self._limits_bytes = limits_bytes or (device.limit_bytes,)
        self._timeout_seconds = timeout_seconds or DEFAULT_TIMEOUT_SECONDS
        self._log = ServerLog()
        # What killed ranks leave there goes with it; a probe without ranks writes nothing.
        self._scratch = TemporaryFolder("ranks") if len(limits_bytes) > 1 else None
        self._process: subprocess.Popen[bytes] | None = None
        self._request_fd = -1
        self._events: _Events | None = None
        self._child_pid: int | None = None
        self._tracer_pid: int | None = None
        self._reusable = False
        self._is_ready = False
        self._kind = "train"
        self._start()

    @property
    def kind(self) -> str:
        """What a step of the workload does."""
        self._await_ready()
        return self._kind

    def probe(
        self,
        case: Case,
        microbatch: int,
        *,
        steps: int,
        mix: Mix = (),
        race: Race | None = None,
        run: str | None = None,
    ) -> Outcome:
        """Run one probe in a fresh process; with other nodes, under the name that all of them call it."""
        kills_before = num_oom_kills()
        request = {"do": "probe", "case": dict(case), "microbatch": microbatch, "steps": steps, "mix": list(mix)}
        reply = self._ask({**request, "race": race.to_dict() if race else None, "run": run}, self._timeout_seconds)
        if reply.message is not None:
            failed = reply.message["verdict"] in (Verdict.ERROR, Verdict.UNCLEAR)
            tail = self._log.tail() if failed else ""
            return outcome_from(microbatch, reply.message, sources=reply.message["sources"], log_tail=tail)
        killed = reply.exit_code == -signal.SIGKILL and not reply.hung
        if killed and kills_before is not None and (num_oom_kills() or 0) > kills_before:
            detail = "the kernel killed the process: the host's memory ran out"
            return Outcome(probe=Probe(microbatch=microbatch, verdict=Verdict.OOM, detail=detail), phase=reply.phase)
        detail = f"{self._how_it_died(reply)} during {reply.phase}"
        probe = Probe(microbatch=microbatch, verdict=Verdict.UNCLEAR, detail=detail)
        return Outcome(probe=probe, phase=reply.phase, log_tail=self._log.tail(), hung=reply.hung)

    def trace(self, case: Case, *, cap: int, steps: int) -> Traced:
        """Trace the case in a fresh process; a failure is an answer without points."""
        seconds = min(TRACE_SECONDS, self._timeout_seconds)
        reply = self._ask({"do": "trace", "case": dict(case), "cap": cap, "steps": steps}, seconds)
        if reply.message is None:
            how = f"took more than {seconds:g} s" if reply.hung else self._how_it_died(reply)
            return Traced(problem=f"tracing {how}")
        return Traced(
            baseline_bytes=reply.message["baseline_bytes"],
            points=dict(reply.message.get("points", ())),
            slope=reply.message.get("slope", 1.0),
            expected=dict(reply.message.get("expected", ())),
            gap_from=reply.message.get("gap_from"),
            leak=reply.message.get("leak"),
            problem=reply.message.get("problem"),
        )

    def end_probe(self) -> None:
        """End the probe that another thread waits for, which then is unclear."""
        process, child_pid = self._process, self._child_pid
        if process is not None and (child_pid is not None or not self._reusable):
            kill_group(child_pid or process.pid)

    def close(self) -> None:
        """End the server and whatever runs in it."""
        self._stop()
        self._log.close()
        if self._scratch is not None:
            self._scratch.cleanup()

    def _start(self) -> None:
        request_read, self._request_fd = os.pipe()
        event_read, event_write = os.pipe()
        settings = {
            "address": self._address,
            "device_name": self._device.name,
            "limits_bytes": self._limits_bytes,
            "rendezvous": self._rendezvous,
            "scratch": self._scratch.name if self._scratch is not None else None,
            "request_fd": request_read,
            "event_fd": event_write,
        }
        environment = {**os.environ, PROBING_VARIABLE: str(os.getpid())}
        self._log.clear()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "brim.probing.server", json.dumps(settings)],
            stdin=subprocess.DEVNULL,
            stdout=self._log.fileno(),
            stderr=self._log.fileno(),
            pass_fds=(request_read, event_write),
            env=environment,
            start_new_session=True,
        )
        os.close(request_read)
        os.close(event_write)
        self._events = _Events(event_read)
        self._is_ready = False

    def _await_ready(self) -> None:
        """Wait until the server has loaded the workload, or raise why it could not."""
        if self._process is None:
            self._start()
        if self._is_ready:
            return
        try:
            self._hear_that_it_is_ready()
        except BaseException:
            self._stop()
            raise
        self._is_ready = True

    def _hear_that_it_is_ready(self) -> None:
        assert self._events is not None
        message = self._events.next(max(self._timeout_seconds, DEFAULT_TIMEOUT_SECONDS))
        if message is None:
            tail = self._log.tail()
            what = "hung" if self._events.is_open else "ended"
            raise WorkloadError(f"The process {what} while loading {self._address}.", phase="load", log_tail=tail)
        if message["say"] == "refused":
            error = getattr(errors, message["error"], InputError)
            raise error(message["message"])
        if message["say"] == "load_failed":
            raise WorkloadError(
                f"Loading {self._address} failed: {message['message']}",
                phase="load",
                traceback=message["traceback"],
                log_tail=self._log.tail(),
            )
        self._kind, self._reusable = message["kind"], message["reusable"]

    def _ask(self, request: Mapping[str, Any], timeout_seconds: float) -> _Reply:
        self._await_ready()
        assert self._events is not None
        self._child_pid = None
        self._log.mark()
        reply = _Reply()
        try:
            os.write(self._request_fd, (json.dumps(request) + "\n").encode())
        except BrokenPipeError:
            reply.exit_code = self._end_process()
            return reply
        while True:
            message = self._events.next(timeout_seconds)
            if message is None and self._events.is_open and not reply.hung:
                reply.hung = True
                self._kill_running()
                timeout_seconds = _GRACE_SECONDS
            elif message is None:
                reply.exit_code = self._end_process()
                return reply
            elif message["say"] == "started":
                self._child_pid = message["pid"]
            elif message["say"] == "phase":
                reply.phase = message["phase"]
                reply.progress[message.get("rank", 0)] += 1
            elif message["say"] == "ended":
                # A tracer lives on for the next case, and with it what the workload started and left behind.
                if request["do"] == "trace":
                    self._tracer_pid = self._child_pid
                self._child_pid = None
                reply.exit_code = message["exit_code"]
                return reply
            else:
                reply.message = message
                if not self._reusable:
                    self._stop()
                    return reply

    def _kill_running(self) -> None:
        """Kill the probe's whole process group: the forked child's, or the server's where it probes itself."""
        assert self._process is not None
        kill_group(self._child_pid or self._process.pid)

    def _end_process(self) -> int:
        """Wait for a server that closed its pipe and forget it."""
        assert self._process is not None
        process = self._process
        try:
            exit_code = process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            exit_code = -signal.SIGKILL
        self._stop()
        return exit_code

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        kill_descendants(process.pid)
        for pid in (self._child_pid, self._tracer_pid, process.pid):
            if pid is not None:
                kill_group(pid)
        self._child_pid = self._tracer_pid = None
        process.wait()
        os.close(self._request_fd)
        if self._events is not None:
            self._events.close()

    def _how_it_died(self, reply: _Reply) -> str:
        if reply.hung:
            how = f"made no progress for {self._timeout_seconds:g} s and was ended"
            most = max(reply.progress.values(), default=0)
            behind = [str(rank) for rank, count in sorted(reply.progress.items()) if count < most]
            return f"{how} (rank {', '.join(behind)} was behind)" if behind else how
        if reply.exit_code is not None and reply.exit_code < 0:
            return f"was ended by {signal_name(-reply.exit_code)}"
        return f"ended with exit code {reply.exit_code} and no result"


class _Events:
    """JSON lines from a pipe, with a time limit on each."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(fd, selectors.EVENT_READ)
        self.is_open = True

    def next(self, timeout_seconds: float) -> dict[str, Any] | None:
        """Return the next message; None when the time is up or the pipe is closed."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            while b"\n" not in self._buffer:
                remaining = deadline - time.monotonic()
                if not self.is_open or remaining <= 0 or not self._selector.select(remaining):
                    return None
                data = os.read(self._fd, 65536)
                self.is_open = bool(data)
                self._buffer += data
            line, _, self._buffer = self._buffer.partition(b"\n")
            # Whatever else is in the pipe was written by a workload that found it among its open files.
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict):
                    return message

    def close(self) -> None:
        """Close the pipe."""
        self._selector.close()
        os.close(self._fd)
