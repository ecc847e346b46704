"""The process between brim and a command: whatever the command starts ends with it.

It adopts what the command leaves behind, also in sessions of their own, and ends everything when a pipe closes, as it
does when brim is killed. A byte in that pipe is Ctrl-C. At the end it writes to another how the command ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import psutil

from brim.groups import adopt_orphans
from brim.probing.scripts.kept import APART

# What ends a whole group of processes, the keeper aside.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# How long what a command started may take to end by itself after it.
_FAREWELL_SECONDS = 1.0
# How long killing may take; only a process stuck in the kernel takes longer.
_KILLING_SECONDS = 10.0


def main() -> None:
    """Run the command behind the numbers of two pipes, and its place, until it ends or the first pipe closes."""
    adopt_orphans()
    inherited = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    lifeline, report, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    for pipe in (lifeline, report):
        os.set_inheritable(pipe, False)

    def prepare() -> None:
        if place == APART:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, inherited)

    command = subprocess.Popen(sys.argv[4:], start_new_session=place == APART, preexec_fn=prepare)
    threading.Thread(target=_obey, args=(lifeline,), daemon=True).start()
    exit_code = command.wait()
    num_left = len(_still_running(_FAREWELL_SECONDS))
    _kill_all()
    with contextlib.suppress(BrokenPipeError):  # brim was killed, and the command with it
        os.write(report, json.dumps({"exit_code": exit_code, "num_left": num_left}).encode())
    os._exit(0)  # the thread still reads


def _obey(lifeline: int) -> None:
    while os.read(lifeline, 1):
        # What the whole group was sent, as by a terminal, the command has got already.
        if signal.sigtimedwait([signal.SIGINT], 0) is None:
            _interrupt()
    _kill_all()


def _interrupt() -> None:
    """Send Ctrl-C as a terminal does: to every process of the group."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == os.getpgrp():
                process.send_signal(signal.SIGINT)


def _still_running(patience_seconds: float) -> list[psutil.Process]:
    """Return the descendants that still run after so long."""
    _, alive = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=patience_seconds)
    return alive


def _kill_all() -> None:
    deadline = time.monotonic() + _KILLING_SECONDS
    while (left := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        for process in left:
            try:
                process.kill()
            except psutil.Error:
                continue
        psutil.wait_procs(left, timeout=_FAREWELL_SECONDS)


if __name__ == "__main__":
    main()
