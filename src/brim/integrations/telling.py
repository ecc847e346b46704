"""How a search inside a job says what it does: on the logger `brim.job`, from the first rank."""

from __future__ import annotations

import logging


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
