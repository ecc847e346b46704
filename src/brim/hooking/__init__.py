"""The environment in which every Python of a command calls modules of brim once it has imported torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# What the hook reads: a list of the modules whose `attach` it calls in turn, and what each is given.
ENVIRONMENT = "BRIM_HOOK"
_FOLDER = Path(__file__).parent / "start"
_FAILURE = "hook-failed.txt"


def hooked_environment(
    module: str, settings: Mapping[str, Any], *, folder: Path, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return an environment, this process's unless another is given, with one more module hooked into it.

    Args:
        module: Has a function `attach(settings)`; called in every process that imports torch, right after that.
        settings: What it is given, besides the folder.
        folder: Where it may write, and where the hook says why it failed, if it does.
        base: Where other modules may be hooked in already.
    """
    inherited = dict(os.environ if base is None else base)
    hooked = [*json.loads(inherited.get(ENVIRONMENT, "[]")), {**settings, "module": module, "folder": str(folder)}]
    path = inherited.get("PYTHONPATH", "")
    if str(_FOLDER) not in path.split(os.pathsep):
        path = os.pathsep.join(filter(None, [str(_FOLDER), path]))
    return {**inherited, ENVIRONMENT: json.dumps(hooked), "PYTHONPATH": path}


def hook_failure(folder: Path) -> str | None:
    """Return the traceback of a hook that failed; None where none did."""
    path = folder / _FAILURE
    return path.read_text() if path.exists() else None
