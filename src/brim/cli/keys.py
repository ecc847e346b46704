"""Keys of a terminal, one at a time."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def pressed_keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits so many seconds for a key and returns it, or an empty text.

    Where standard input is no terminal it only waits.
    """
    if not sys.stdin.isatty():
        yield _wait
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield lambda seconds: _key(terminal, seconds)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _wait(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def _key(terminal: int, seconds: float) -> str:
    ready, _, _ = select.select([terminal], [], [], seconds)
    return os.read(terminal, 1).decode(errors="replace") if ready else ""
