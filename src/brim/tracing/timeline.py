"""One step in time: what every kind of memory held, event by event, thinned to what a picture can show."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from brim.tracing.record import KINDS, Phase, Record

# More points than this are no longer told apart on a screen.
NUM_POINTS = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePoint:
    """What was live after one event of a step.

    Attributes:
        event: Which birth or death of a storage, counted from the start of the step.
        phase: What ran: `forward`, `backward` or `optimizer`.
        module: The module that made the last storage.
        bytes: The live bytes of every kind.
    """

    event: int
    phase: str
    module: str
    bytes: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Return the point as plain data."""
        return asdict(self)


def timeline(record: Record, num_points: int = NUM_POINTS) -> tuple[TimelinePoint, ...]:
    """Return the last step of a record; of every stretch of events the one with the most live bytes stays."""
    kinds = record.kinds()
    first = record.step_starts[-1] if record.step_starts else 0
    start = next((at for at, (number, size) in enumerate(record.events) if size and number >= first), 0)
    held = Counter(dict.fromkeys(KINDS, 0))
    for number in record.live_at(start - 1):
        held[kinds[number]] += record.storages[number].num_bytes
    stretch = math.ceil((len(record.events) - start) / num_points)
    phase, module, points, best = Phase.FORWARD, "", [], None
    for index, (number, num_bytes) in enumerate(record.events[start:]):
        storage = record.storages[number]
        held[kinds[number]] += num_bytes or -storage.num_bytes
        if num_bytes:
            phase, module = storage.phase, storage.module
        if best is None or held.total() > sum(best.bytes.values()):
            best = TimelinePoint(event=index, phase=phase.value, module=module, bytes=dict(held))
        if (index + 1) % stretch == 0:
            points.append(best)
            best = None
    return tuple(points if best is None else [*points, best])
