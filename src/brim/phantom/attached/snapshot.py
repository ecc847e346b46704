"""Inside a job on phantoms: torch's own snapshot of its memory, for pytorch.org/memory_viz."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from brim.hooking.ends import before_the_end
from brim.phantom.attached.refusals import attach_observer
from brim.probing.scripts.witness import num_ranks_here, rank_here

# How many of the latest events are kept: what torch's own tutorial "Understanding GPU Memory" keeps.
_MOST_EVENTS = 100_000


class Recorder:
    """Records what torch's allocator does in this process, and writes it when memory runs out and at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def attach(self) -> None:
        """Record as soon as the process uses CUDA; before, nothing may, for it could still fork."""
        torch.cuda._lazy_call(self._begin)
        before_the_end(self._write)

    def _begin(self) -> None:
        torch.cuda.memory._record_memory_history(max_entries=_MOST_EVENTS, stacks="python")
        attach_observer(lambda *told: self._write())

    def _write(self) -> None:
        if not torch.cuda.is_initialized():
            return
        rank = f"-{rank_here()}" if num_ranks_here() > 1 else ""
        path = self._folder / f"{os.getpid()}{rank}.pickle"
        temporary = path.with_suffix(".new")
        torch.cuda.memory._dump_snapshot(str(temporary))
        temporary.replace(path)


def attach(settings: Mapping[str, Any]) -> None:
    """Record in this process, as the start-up hook asks."""
    Recorder(Path(settings["folder"])).attach()
