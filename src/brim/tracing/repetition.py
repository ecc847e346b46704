"""The last traced step, to be run again: what a job does after the steps that were traced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from brim.tracing.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """How to go on after a record's last event.

    Attributes:
        start: The index of the event to go on from, the first of the last step.
        successors: By storages that die in the last step and are older than it, those of its own that live on in their
            place, and die in the next.
    """

    start: int
    successors: Mapping[int, int] = field(default_factory=dict)


def repetition_of(record: Record) -> Repetition | None:
    """Return how the last step of a record is repeated; None where the next would not be like it.

    >>> from brim.tracing.record import Phase, Storage
    >>> output = Storage(num_bytes=8, phase=Phase.FORWARD, module="")
    >>> kept = Record(storages=(output,) * 2, events=((0, 8), (1, 8), (0, 0)), step_events=(0, 1))
    >>> repetition_of(kept)
    Repetition(start=1, successors={0: 1})
    """
    if not record.step_events:
        return None
    start = record.step_events[-1]
    last = record.events[start:]
    born = {number for number, num_bytes in last if num_bytes}
    died = {number for number, num_bytes in last if not num_bytes} - record.cache_drops - {*record.blas_starts}
    older, kept = sorted(died - born), sorted(born - died)
    sizes = [[record.storages[number].num_bytes for number in numbers] for numbers in (older, kept)]
    if sizes[0] != sizes[1]:
        return None
    return Repetition(start=start, successors=dict(zip(older, kept, strict=True)))
