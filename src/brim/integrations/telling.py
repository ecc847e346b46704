"""How a search inside a job says what it does, on the logger `brim.job`, and under which name it is remembered."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brim.history import hash_file


def job_logger(rank: int) -> logging.Logger:
    """Return the logger of a rank; the others than the first only warn.

    Where no logging is set up, its lines go to standard error, so that a search is never silent.
    """
    logger = logging.getLogger("brim.job" if rank == 0 else "brim.job.others")
    logger.setLevel(logging.INFO if rank == 0 else logging.WARNING)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("brim: %(message)s"))
        logging.getLogger("brim.job").addHandler(handler)
    return logger


def identity(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return a name that tells the function from others, and the hash of its file."""
    original = inspect.unwrap(function)
    name = getattr(original, "__qualname__", repr(original))
    try:
        path = Path(inspect.getfile(original)).resolve()
    except TypeError:
        return name, {}
    digest = hash_file(path)
    return f"{path}:{name}", {} if digest is None else {str(path): digest}
