"""Folders for a while, which do not stay when the process that made them was killed."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path

# So long a folder must have been left alone: where containers share one, nobody sees whether another's process lives.
_ABANDONED_SECONDS = 3600.0


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """A folder whose name says for what it is and which process made it; making one removes those of dead processes."""

    def __init__(self, kind: str) -> None:
        prefix = f"brim-{kind}-"
        _remove_abandoned(prefix)
        super().__init__(prefix=f"{prefix}{os.getpid()}-", ignore_cleanup_errors=True)

    @property
    def path(self) -> Path:
        """Where it is."""
        return Path(self.name)


def _remove_abandoned(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*-*"):
        pid = folder.name.removeprefix(prefix).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists() and _seconds_since_use(folder) > _ABANDONED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


def _seconds_since_use(folder: Path) -> float:
    try:
        return time.time() - folder.stat().st_mtime
    except OSError:  # another process has just removed it, or may not look
        return 0.0
