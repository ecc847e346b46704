"""The process between brim and a command: whatever the command starts ends with it.

It adopts what the command leaves behind, also in sessions of their own, and ends everything when its standard input
closes, as it does when brim is killed. At the end it prints how the command ended.
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
    """Run the command in the arguments until it ends or standard input closes."""
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    told, sys.stdout = sys.stdout, sys.stderr
    command = subprocess.Popen(
        sys.argv[1:],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    threading.Thread(target=_end_on_eof, daemon=True).start()
    exit_code = command.wait()
    num_left = len(_still_running(_FAREWELL_SECONDS))
    _kill_all()
    told.write(json.dumps({"exit_code": exit_code, "num_left": num_left}))
    told.flush()
    os._exit(0)  # the thread still reads


def _end_on_eof() -> None:
    sys.stdin.buffer.read()
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
