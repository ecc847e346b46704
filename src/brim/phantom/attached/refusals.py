"""Inside a job on phantoms: what torch's allocator alone knows, how often it tried again and which line it refused."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from brim.hooking.ends import before_the_end
from brim.probing.scripts.witness import num_ranks_here, rank_here
from brim.probing.verdicts import line_above

# Of `torch.cuda.memory_stats`.
_RETRIES = "num_alloc_retries"


class Refusals:
    """Listens to torch's allocator in this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: dict[int, str | None] = {}

    def attach(self) -> None:
        """Listen as soon as the process uses CUDA; before, nothing may, for it could still fork."""
        torch.cuda._lazy_call(self._begin)
        before_the_end(self._write)

    def _begin(self) -> None:
        attach_observer(self._on_refusal)

    def _on_refusal(self, device: int, asked_bytes: int, total_bytes: int, free_bytes: int) -> None:
        """Note the line: in a thread of the backward pass that is the one which the main thread waits in."""
        waiting = sys._current_frames().get(threading.main_thread().ident or 0)
        self._lines[device] = line_above(sys._getframe().f_back) or line_above(waiting)
        self._write()

    def _write(self) -> None:
        if not torch.cuda.is_initialized():
            return
        stats = {device: torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count())}
        told: dict[str, Any] = {
            "rank": rank_here() if num_ranks_here() > 1 else None,
            "devices": {
                device: {"num_retries": each[_RETRIES], "line": self._lines.get(device)}
                for device, each in stats.items()
                if _RETRIES in each
            },
        }
        path = self._folder / f"{os.getpid()}.json"
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(told))
        temporary.replace(path)


def attach_observer(observe: Callable[[int, int, int, int], None]) -> None:
    """Have torch's allocator call when it refuses a request, with the device and what is asked, there and free."""

    def observe_and_go_on(*told: int) -> None:
        with contextlib.suppress(Exception):  # which the job would get in place of the allocator's error
            observe(*told)

    with contextlib.suppress(AttributeError):  # a torch that cannot is no reason for the job to fail
        torch._C._cuda_attach_out_of_memory_observer(observe_and_go_on)  # type: ignore[attr-defined]


def attach(settings: Mapping[str, Any]) -> None:
    """Listen in this process, as the start-up hook asks."""
    Refusals(Path(settings["folder"])).attach()
