"""The environment in which every Python of a command calls a module of brim once it has imported torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# What the hook reads: the module whose `attach` it calls, and what that is given.
ENVIRONMENT = "BRIM_HOOK"
_FOLDER = Path(__file__).parent / "hook"
_FAILURE = "hook-failed.txt"


def hooked_environment(module: str, settings: Mapping[str, Any], *, folder: Path) -> dict[str, str]:
    """Return this process's environment with the hook in it.

    Args:
        module: Has a function `attach(settings)`; called in every process that imports torch, right after that.
        settings: What it is given, besides the folder.
        folder: Where it may write, and where the hook says why it failed, if it does.
    """
    told = {**settings, "module": module, "folder": str(folder)}
    path = os.pathsep.join(filter(None, [str(_FOLDER), os.environ.get("PYTHONPATH")]))
    return {**os.environ, ENVIRONMENT: json.dumps(told), "PYTHONPATH": path}


def hook_failure(folder: Path) -> str | None:
    """Return the traceback of a hook that failed; None where none did."""
    path = folder / _FAILURE
    return path.read_text() if path.exists() else None
