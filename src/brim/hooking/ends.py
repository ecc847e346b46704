"""What hooked modules still have to do before a process of a job ends, however brim ends it."""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable

_calls: list[Callable[[], None]] = []


def before_the_end(call: Callable[[], None]) -> None:
    """Call when this process comes to its own end, and before it waits for brim to end it."""
    _calls.append(call)
    atexit.register(call)


def prepare_for_the_end() -> None:
    """Make all calls now: nothing of this process runs after brim has heard that it is done."""
    for call in _calls:
        with contextlib.suppress(Exception):  # one that fails keeps no other from what it has to write
            call()
