"""The process between brim and a command: whatever the command starts ends with it.

It adopts what the command leaves behind, also in sessions of their own, and ends everything when a pipe closes, as it
does when brim is killed. At the end it writes to another how the command ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import psutil

from brim.groups import adopt_orphans

# How long what a command started may take to end by itself after it.
_FAREWELL_SECONDS = 1.0
# How long killing may take; only a process stuck in the kernel takes longer.
_KILLING_SECONDS = 10.0


def main() -> None:
    """Run the command behind the numbers of two pipes until it ends or the first pipe closes."""
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lifeline, report = int(sys.argv[1]), int(sys.argv[2])
    for pipe in (lifeline, report):
        os.set_inheritable(pipe, False)
    command = subprocess.Popen(
        sys.argv[3:],
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    threading.Thread(target=_end_on_eof, args=(lifeline,), daemon=True).start()
    exit_code = command.wait()
    num_left = len(_still_running(_FAREWELL_SECONDS))
    _kill_all()
    os.write(report, json.dumps({"exit_code": exit_code, "num_left": num_left}).encode())
    os._exit(0)  # the thread still reads


def _end_on_eof(lifeline: int) -> None:
    os.read(lifeline, 1)  # nobody writes
    _kill_all()


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
