"""Processes below the host: starting a command, finding orphans, killing."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import psutil

from brim.groups import die_with_parent
from brim.sweeping.jobs import Job


def spawn(job: Job, log_fd: int, environment: dict[str, str]) -> int:
    """Start a command in a session of its own and return its pid."""
    assert job.argv is not None
    process = subprocess.Popen(
        job.argv,
        cwd=job.workdir,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log_fd,
        stderr=log_fd,
        start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid()),
    )
    process.returncode = 0  # the host waits for it by itself
    return process.pid


def children() -> set[int]:
    """Return the pids of the host's own children; cheaper than a look at every process of the machine."""
    try:
        return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}
    except OSError:
        return {process.pid for process in psutil.Process().children()}


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """Kill processes; one that is gone is no error."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
