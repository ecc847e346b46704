"""`brim.log_step`: what only the job itself can know, told to the `brim watch` that runs it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

# Where the job writes; set by `brim watch`, and in no other run.
ENVIRONMENT = "BRIM_WATCH_FILE"


class _Clock:
    """The time of the last step of this process."""

    last: float | None = None


def log_step() -> None:
    """Say that an optimizer step is done; call it at the end of each. Without `brim watch` it does nothing.

    The time since the last call is told, and where CUDA is in use the allocator's counts of retries and of
    out-of-memory errors and the peak of its memory.
    """
    path = os.environ.get(ENVIRONMENT)
    if not path:
        return
    now = time.perf_counter()
    told: dict[str, Any] = {"pid": os.getpid(), **_allocator()}
    if _Clock.last is not None:
        told["step_seconds"] = now - _Clock.last
    _Clock.last = now
    # A line this short is appended whole, whichever rank writes. Nobody may be listening any more.
    with contextlib.suppress(OSError), Path(path).open("a") as file:
        file.write(json.dumps(told) + "\n")


def _allocator() -> dict[str, int]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    counts = torch.cuda.memory_stats()
    return {
        "allocator_retries": counts.get("num_alloc_retries", 0),
        "ooms": counts.get("num_ooms", 0),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a job said of itself; None where it said nothing.

    Attributes:
        num_steps: Steps of the process that told most.
        step_seconds: The median time of a step.
        allocator_retries: Over all its processes, as `ooms`.
        reserved_bytes: The most that torch's allocator held in one process.
    """

    num_steps: int = 0
    step_seconds: float | None = None
    allocator_retries: int | None = None
    ooms: int | None = None
    reserved_bytes: int | None = None


def read_told(path: Path) -> Told:
    """Return what the processes of a job have told so far; a line that is still being written is passed over."""
    by_process: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            told = json.loads(line)
            by_process[told["pid"]].append(told)
        except (ValueError, KeyError, TypeError):
            continue
    seconds = [each["step_seconds"] for lines in by_process.values() for each in lines if "step_seconds" in each]

    def last(name: str) -> list[int]:
        return [lines[-1][name] for lines in by_process.values() if name in lines[-1]]

    return Told(
        num_steps=max((len(lines) for lines in by_process.values()), default=0),
        step_seconds=median(seconds) if seconds else None,
        allocator_retries=sum(last("allocator_retries")) if last("allocator_retries") else None,
        ooms=sum(last("ooms")) if last("ooms") else None,
        reserved_bytes=max(last("reserved_bytes"), default=None),
    )
