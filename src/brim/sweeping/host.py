"""The process that trials run below: it starts and ends them, and outlives whoever asked.

It is their subreaper, so that nothing a trial starts can run away from it, and it ends everything when its requests
stop coming: a trial never outlives its sweep, even one that was ended by SIGKILL.

Requests come in as JSON lines on one pipe, `start` and `end`; exits go out on another.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import selectors
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from brim.devices.cpu import num_oom_kills
from brim.groups import adopt_orphans, die_with_parent, kill_group
from brim.sweeping.jobs import MARK, Job
from brim.sweeping.outcome import LOG_FILE, Exit
from brim.sweeping.processes import children, kill_all, spawn

# Said on the command line of a host that must not die with its parent's other children.
DETACHED = "detached"
# Between asking a trial to end and ending it.
GRACE_SECONDS = 5.0
_BYTES_PER_MAXRSS = 1024 if sys.platform == "linux" else 1


class BecomeTrial(BaseException):
    """Raised in a forked child: leave the host's loop behind and be a trial."""

    def __init__(self, job: Job, environment: dict[str, str]) -> None:
        super().__init__(job.name)
        self.job = job
        self.environment = environment


@dataclass(slots=True)
class _Running:
    job: Job
    pid: int
    started: float
    oom_kills: int | None
    ended_by: str | None = None
    kill_at: float | None = None
    is_killed: bool = False

    def deadline(self) -> float | None:
        """When something has to be done about it."""
        if self.is_killed or self.kill_at is not None:
            return None if self.is_killed else self.kill_at
        return None if self.job.timeout_seconds is None else self.started + self.job.timeout_seconds


class Host:
    """Starts processes, waits for them, and leaves none behind."""

    def __init__(self, request_fd: int, event_fd: int, inherited_fds: tuple[int, ...]) -> None:
        self._request_fd = request_fd
        self._event_fd = event_fd
        self._inherited_fds = inherited_fds
        self._running: dict[str, _Running] = {}
        self._buffer = b""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def serve(self) -> None:
        """Answer requests until the pipe closes, then end everything."""
        adopt_orphans()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._request_fd, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            is_open = True
            while is_open:
                ready = {key.fd for key, _ in selector.select(self._patience())}
                if self._wake_read in ready:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_read, 4096)
                if self._request_fd in ready:
                    is_open = self._read_requests()
                self._reap()
                self._end_overdue()
        self._end_all()

    def _end_all(self) -> None:
        """Kill and bury every trial: whoever waits for the host's end may rely on theirs."""
        for running in list(self._running.values()):
            self._kill(running)
            _, status, usage = os.wait4(running.pid, 0)
            exit_code = os.waitstatus_to_exitcode(status)
            # It may have come to its own end just before.
            running.ended_by = "request" if exit_code == -signal.SIGKILL else running.ended_by
            self._bury(running, exit_code, usage)
        kill_all(psutil.Process().children(recursive=True))

    def _patience(self) -> float | None:
        deadlines = [deadline for running in self._running.values() if (deadline := running.deadline()) is not None]
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _read_requests(self) -> bool:
        data = os.read(self._request_fd, 1 << 20)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if request["do"] == "start":
                self._start(Job.from_json(request["job"]))
            elif request["name"] in self._running:
                self._ask_to_end(self._running[request["name"]], "request")
        return bool(data)

    def _start(self, job: Job) -> None:
        started, oom_kills = time.monotonic(), num_oom_kills()
        environment = {**os.environ, **job.environment, MARK: _mark(job)}
        try:
            with (Path(job.directory) / LOG_FILE).open("ab") as log:
                if job.argv is None:
                    pid = self._fork(job, log.fileno(), environment)
                else:
                    pid = spawn(job, log.fileno(), environment)
        except OSError as error:
            problem = f"{error.filename or job.name}: {error.strerror}"
            self._tell(job, Exit(exit_code=None, problem=f"It cannot be started: {problem}"))
            return
        self._running[job.name] = _Running(job=job, pid=pid, started=started, oom_kills=oom_kills)

    def _fork(self, job: Job, log_fd: int, environment: dict[str, str]) -> int:
        """Start a function: a forked child is as fresh as a new process, for nothing ran here but imports."""
        import yaml  # noqa: F401  imported once here, not once in every child

        from brim import workload  # noqa: F401
        from brim.sweeping import calling  # noqa: F401

        host_pid = os.getpid()
        gc.freeze()  # what the host has is not looked through once more at the end of every child
        pid = os.fork()
        if pid:
            return pid
        os.setsid()
        die_with_parent(host_pid)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        for fd in (self._request_fd, self._event_fd, self._wake_read, self._wake_write, *self._inherited_fds):
            os.close(fd)
        raise BecomeTrial(job, environment)

    def _reap(self) -> None:
        """Tell of every trial that ended, and bury the orphans that came to the host."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            running = next((each for each in self._running.values() if each.pid == pid), None)
            if running is not None:
                self._bury(running, os.waitstatus_to_exitcode(status), usage)

    def _bury(self, running: _Running, exit_code: int, usage: resource.struct_rusage) -> None:
        del self._running[running.job.name]
        oom_kills = num_oom_kills()
        ended = Exit(
            exit_code=exit_code,
            seconds=time.monotonic() - running.started,
            peak_bytes=usage.ru_maxrss * _BYTES_PER_MAXRSS,
            ended_by=running.ended_by,
            oom_killed=running.oom_kills is not None and (oom_kills or 0) > running.oom_kills,
        )
        kill_group(running.pid)
        self._kill_orphans(_mark(running.job))
        self._tell(running.job, ended)

    def _tell(self, job: Job, ended: Exit) -> None:
        """Note the exit where a later sweep finds it, then tell whoever asked."""
        if job.exit_file is not None:
            path = Path(job.exit_file)
            with contextlib.suppress(OSError):
                path.with_suffix(".new").write_text(json.dumps({"stamp": job.stamp, **asdict(ended)}))
                path.with_suffix(".new").replace(path)
        with contextlib.suppress(BrokenPipeError):
            os.write(self._event_fd, (json.dumps({"name": job.name, **asdict(ended)}) + "\n").encode())

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for running in list(self._running.values()):
            deadline = running.deadline()
            if deadline is None or now < deadline:
                continue
            if running.kill_at is None:
                self._ask_to_end(running, "timeout")
            else:
                self._kill(running)

    def _ask_to_end(self, running: _Running, reason: str) -> None:
        if running.ended_by is None:
            running.ended_by = reason
            running.kill_at = time.monotonic() + GRACE_SECONDS
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGTERM)

    def _kill(self, running: _Running) -> None:
        """Kill a trial with everything it started, also what has left its group."""
        running.is_killed = True
        doomed: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            trial = psutil.Process(running.pid)
            doomed = [trial, *trial.children(recursive=True)]
        kill_group(running.pid)
        kill_all(doomed)  # the trial too: one that was just forked leads no group yet

    def _kill_orphans(self, mark: str) -> None:
        """Kill what an ended trial started and left behind: the kernel made the host its parent."""
        trials = {running.pid for running in self._running.values()}
        for pid in children() - trials:
            with contextlib.suppress(psutil.Error, OSError):
                orphan = psutil.Process(pid)
                if orphan.environ().get(MARK) == mark:
                    kill_all([*orphan.children(recursive=True), orphan])


def _mark(job: Job) -> str:
    return f"{os.getpid()}:{job.name}"


def main() -> None:
    """Serve on the pipes that the command line names; a forked child leaves as a trial and exits as one."""
    request_fd, event_fd, *inherited_fds = map(int, sys.argv[1].split(","))
    if DETACHED in sys.argv and os.fork():
        return  # the child goes on as nobody's child
    turned: BecomeTrial | None = None
    try:
        Host(request_fd, event_fd, tuple(inherited_fds)).serve()
    except BecomeTrial as forked:
        turned = forked
    if turned is not None:  # outside of the handler, whose exception would stand above those of the trial
        sys.exit(_be_trial(turned.job, turned.environment))


def _be_trial(job: Job, environment: dict[str, str]) -> int:
    from brim.sweeping.calling import call

    assert job.call is not None
    assert job.argument is not None
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(job.workdir)
    return call(job.call, Path(job.argument), Path(job.result))


if __name__ == "__main__":
    main()
