"""Process groups: a probe and whatever it started end together."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Container

# Set in every process that brim probes in, to the process that asked for it.
PROBING_VARIABLE = "BRIM_PROBING_FOR"
# Of <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def kill_group(pid: int) -> None:
    """Kill the process group that `pid` leads; a group that is gone is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def kill_descendants(pid: int, *, but: Container[int] = ()) -> None:
    """Kill all that descends from a process, in whatever group or session; `but` names children to leave alone."""
    import psutil  # here, because programs that brim only looks at import this file too

    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children():
            if child.pid in but:
                continue
            with contextlib.suppress(psutil.NoSuchProcess):
                for each in (*child.children(recursive=True), child):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()
            if pid == os.getpid():
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child.pid, 0)


def die_with_parent(parent_pid: int, *, by: signal.Signals = signal.SIGKILL) -> None:
    """Ask the kernel to end this process when its parent dies, however it dies; end now where it already has.

    `by` is the signal that it gets; one that can be handled lets it end what it has started.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent_pid:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none can run away."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def signal_name(number: int) -> str:
    """Return what a signal is called.

    >>> signal_name(9), signal_name(40)
    ('SIGKILL', 'signal 40')
    """
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the numbers for real time
        return f"signal {number}"
