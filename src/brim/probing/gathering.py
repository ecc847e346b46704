"""What a run of a command on phantom GPUs left behind: read, and made into what is reported of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from brim.devices.catalog import Gpu
from brim.hooking import hook_failure
from brim.phantom import Held, Phantoms
from brim.phantom.account import Usage
from brim.probing.scripts.records import Record
from brim.probing.taken import Refused, Taken
from brim.units import format_bytes


class Folders:
    """Where the hooked modules of a job write."""

    def __init__(self, folder: Path) -> None:
        self.records, self.refusals, self.snapshots = (folder / name for name in ("records", "refusals", "snapshots"))
        for each in (self.records, self.refusals, self.snapshots):
            each.mkdir()


def fewest_steps(records: Sequence[Record]) -> int:
    """Return the whole steps of the rank that did fewest, of those that did any."""
    return min((record.steps for record in records if record.steps), default=0)


def read_taken(machine: Phantoms, records: Sequence[Record], folders: Folders) -> list[Taken]:
    """Return what every process took of every device, in the order of ranks."""
    held = {(each.pid, each.device): each for each in machine.held()}
    told = {int(path.stem): json.loads(path.read_text()) for path in folders.refusals.glob("*.json")}
    ranks = {record.pid: record.rank for record in records if record.num_ranks > 1}
    taken = [
        _one(usage, held.get((usage.pid, usage.device)), told.get(usage.pid, {}), ranks.get(usage.pid))
        for usage in machine.account.usages()
    ]
    return sorted(taken, key=lambda each: (each.rank is None, each.rank or 0, each.pid, each.device))


def _one(usage: Usage, held: Held | None, told: Mapping[str, Any], rank: int | None) -> Taken:
    own = told.get("devices", {}).get(str(usage.device), {})
    refused = None
    if usage.refused_bytes:
        refused = Refused(asked_bytes=usage.refused_bytes, line=own.get("line"), held=held.refused if held else None)
    return Taken(
        pid=usage.pid,
        device=usage.device,
        rank=told.get("rank") if rank is None else rank,
        allocated_bytes=usage.allocated_peak_bytes,
        reserved_bytes=usage.reserved_peak_bytes,
        device_bytes=usage.peak_bytes,
        pinned_bytes=usage.pinned_peak_bytes,
        num_retries=own.get("num_retries"),
        held=held.peak if held else None,
        refused=refused,
    )


def notes_of(folders: Folders, *, num_left: int) -> list[str]:
    """Return what else to know of a run that has ended."""
    said = []
    failure = next(filter(None, map(hook_failure, (folders.refusals, folders.snapshots, folders.records))), None)
    if failure is not None:
        said.append(f"brim could not look into the command's Python: {failure.strip().splitlines()[-1]}.")
    if num_left:
        said.append(f"The command ended while {num_left} of its processes still ran, and these were ended.")
    return said


def without_a_context(gpus: Sequence[Gpu], machine: Phantoms) -> list[str]:
    """Return which devices had no room even for what the driver keeps there for a process."""
    return [
        f"Process {usage.pid} could not begin to use cuda:{usage.device}: the driver's context alone does not fit into "
        f"what was free of {format_bytes(gpus[usage.device].memory_bytes)}."
        for usage in machine.account.usages()
        if usage.num_refused and not usage.peak_bytes
    ]


def keep_snapshots(folders: Folders, target: Path) -> list[Path]:
    """Move the snapshots of all processes to where they were asked for."""
    written = sorted(folders.snapshots.glob("*.pickle"))
    kept = []
    for path in written:
        pid, _, rank = path.stem.partition("-")
        part = f".rank{rank}" if rank else f".{pid}"
        goal = target if len(written) == 1 else target.with_name(f"{target.stem}{part}{target.suffix}")
        kept.append(Path(shutil.move(path, goal)))
    return kept
