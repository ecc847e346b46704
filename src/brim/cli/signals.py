"""Signals that end a command from outside, as schedulers, `timeout` and closed terminals do."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_LIKE_CTRL_C = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def end_like_ctrl_c() -> Iterator[None]:
    """Take SIGTERM and SIGHUP for Ctrl-C: what runs is ended, and what was found is printed and kept."""
    previous = {each: signal.signal(each, signal.default_int_handler) for each in _LIKE_CTRL_C}
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)
