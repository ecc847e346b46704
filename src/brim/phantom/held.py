"""What a job's processes wrote of what held their memory (attached/holding.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What tensors held at one moment.

    Attributes:
        num_bytes: In all.
        by_module: Most first; what no module made under names in brackets.
    """

    num_bytes: int
    by_kind: Mapping[str, int]
    by_module: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one process held of one device.

    Attributes:
        peak: At its peak.
        refused: When a request did not fit; None where all did.
        asked_bytes: That request.
        is_whole: Whether every block was seen.
    """

    pid: int
    device: int
    peak: Snapshot
    refused: Snapshot | None = None
    asked_bytes: int = 0
    is_whole: bool = field(default=True)


def read_held(folder: Path, prefix: str) -> list[Held]:
    """Return what every process wrote, by its id."""
    found = []
    for path in sorted(folder.glob(f"{prefix}*.json")):
        told = json.loads(path.read_text())
        for device, each in told["devices"].items():
            refused = each["refused"]
            found.append(
                Held(
                    pid=int(path.stem.removeprefix(prefix)),
                    device=int(device),
                    peak=_snapshot(each["peak"]),
                    refused=None if refused is None else _snapshot(refused),
                    asked_bytes=0 if refused is None else refused["asked_bytes"],
                    is_whole=told["is_whole"],
                )
            )
    return found


def _snapshot(told: Mapping[str, object]) -> Snapshot:
    return Snapshot(num_bytes=told["bytes"], by_kind=told["by_kind"], by_module=told["by_module"])  # type: ignore[arg-type]
