"""Warnings that point at the user's own line, lines of the log, and what is said at the end."""

from __future__ import annotations

import atexit
import logging
import sys
import warnings
import weakref
from pathlib import Path
from typing import Protocol

_logger = logging.getLogger("brim")
_HERE = str(Path(__file__).parent)


def warn_caller(message: str) -> None:
    """Warn at the first line outside of this room."""
    frame, stacklevel = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame, stacklevel = frame.f_back, stacklevel + 1
    warnings.warn(message, stacklevel=stacklevel - 1)


def log_line(message: str) -> None:
    """Write one line that a user should see, to the logger `brim`."""
    _logger.warning("%s", message)


class Adviser(Protocol):
    """Something that learned in a run what to set in the next."""

    @property
    def advice(self) -> str | None:
        """What to set next time, or None."""


def tell_at_exit(adviser: Adviser) -> None:
    """Write the advice when the process ends, if the adviser is still there."""
    atexit.register(_tell, weakref.ref(adviser))


def _tell(reference: weakref.ref[Adviser]) -> None:
    adviser = reference()
    if adviser is not None and adviser.advice is not None:
        log_line(adviser.advice)
