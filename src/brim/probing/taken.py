"""What one run of a command took of phantom GPUs, as `brim phantom` reports it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from brim.devices.catalog import Gpu
from brim.phantom import Snapshot

SCHEMA = "brim.phantom/1"


class End(Enum):
    """What ended a run."""

    ITSELF = "itself"
    STEPS = "steps"
    INTERRUPT = "interrupt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The last request that torch's allocator refused.

    Attributes:
        line: Of the user's own code; None where nobody saw it.
        held: What tensors held then; None where the process did not come to tell.
    """

    asked_bytes: int
    line: str | None = None
    held: Snapshot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one process took of one device.

    Attributes:
        rank: Which data-parallel process it is, where there are several.
        device_bytes: The most that it held in all, its context among it.
        pinned_bytes: The most page-locked memory of the host that it had, for all its devices.
        num_retries: How often torch's allocator freed what it had cached and asked again; None where it did not tell.
        held: What tensors held at the peak; None where it did not tell.
    """

    pid: int
    device: int
    rank: int | None = None
    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    pinned_bytes: int
    num_retries: int | None = None
    held: Snapshot | None = None
    refused: Refused | None = None

    @property
    def name(self) -> str:
        """How it is called where there are several."""
        return f"{f'process {self.pid}' if self.rank is None else f'rank {self.rank}'} on cuda:{self.device}"

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        refused = self.refused
        return {
            "pid": self.pid,
            "rank": self.rank,
            "device": self.device,
            "peak": {
                "allocated_bytes": self.allocated_bytes,
                "reserved_bytes": self.reserved_bytes,
                "device_bytes": self.device_bytes,
            },
            "num_retries": self.num_retries,
            "pinned_bytes": self.pinned_bytes,
            "breakdown": _breakdown(self.held),
            "refused": None
            if refused is None
            else {"asked_bytes": refused.asked_bytes, "line": refused.line, "breakdown": _breakdown(refused.held)},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a command.

    Attributes:
        exit_code: The command's own, negative for a signal; None where it had to be ended.
        kind: What a step of it does; None where no step was seen.
        num_steps: Whole steps of the rank that did fewest.
        peaks_bytes: The most that all processes held at once, of every device.
        snapshots: The files of torch's own that were written.
    """

    words: Sequence[str]
    gpus: Sequence[Gpu]
    torch: str
    ended: End
    exit_code: int | None
    seconds: float
    kind: str | None
    num_steps: int
    taken: Sequence[Taken]
    peaks_bytes: Sequence[int]
    remarks: Sequence[str] = ()
    snapshots: Sequence[Path] = ()

    @property
    def fullest(self) -> Taken | None:
        """The process that did not get what it asked for, else the one that took most of its device."""
        return max(
            self.taken,
            key=lambda each: (each.refused is not None, each.device_bytes / self.gpus[each.device].memory_bytes),
            default=None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the document `brim.phantom/1`."""
        gpus = [
            {"name": gpu.name, "memory_bytes": gpu.memory_bytes, "peak_bytes": peak_bytes}
            for gpu, peak_bytes in zip(self.gpus, self.peaks_bytes, strict=True)
        ]
        return {
            "schema": SCHEMA,
            "command": list(self.words),
            "torch": self.torch,
            "gpus": gpus,
            "ended_by": self.ended.value,
            "exit_code": self.exit_code,
            "seconds": round(self.seconds, 3),
            "kind": self.kind,
            "steps": self.num_steps,
            "processes": [each.to_dict() for each in self.taken],
            "remarks": list(self.remarks),
            "snapshots": [str(path) for path in self.snapshots],
        }


def _breakdown(held: Snapshot | None) -> dict[str, Any] | None:
    if held is None:
        return None
    by_module = [{"name": name, "bytes": num_bytes} for name, num_bytes in held.by_module.items()]
    return {"by_kind": dict(held.by_kind), "by_module": by_module}
