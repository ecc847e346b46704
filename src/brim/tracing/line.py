"""The line between two traces: every storage's size at any microbatch, exact where sizes grow evenly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from brim.tracing.record import Record
from brim.tracing.scratch import Processors, Scratch


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLine:
    """Two records of the same workload whose storages correspond one to one.

    Attributes:
        low: The smaller microbatch.
        at_low: Its record.
        bytes_per_sample: By how much each storage grows with one sample more.
        high: The larger microbatch.
        scratches: By its number, what a kernel takes for a moment at both.
    """

    low: int
    at_low: Record
    bytes_per_sample: tuple[int, ...]
    high: int
    scratches: Mapping[int, tuple[Scratch, Scratch]]

    def at(self, microbatch: int) -> Record:
        """Return the record of a microbatch that was not traced."""
        sized = enumerate(zip(self.at_low.storages, self._sizes(microbatch), strict=True))
        return Record(
            storages=tuple(
                replace(storage, num_bytes=size, scratch=self._scratch_at(microbatch, number))
                for number, (storage, size) in sized
            ),
            events=self.events_at(microbatch),
            step_starts=self.at_low.step_starts,
            step_events=self.at_low.step_events,
            cache_drops=self.at_low.cache_drops,
            blas_starts=self.at_low.blas_starts,
        )

    def events_at(self, microbatch: int, processors: Processors | None = None) -> tuple[tuple[int, int], ...]:
        """Return the births and deaths of that record alone, on a GPU or a typical one."""
        sizes = self._sizes(microbatch, processors)
        return tuple((number, sizes[number] if num_bytes else 0) for number, num_bytes in self.at_low.events)

    def _sizes(self, microbatch: int, processors: Processors | None = None) -> list[int]:
        more = microbatch - self.low
        growing = zip(self.at_low.storages, self.bytes_per_sample, strict=True)
        sizes = [
            storage.num_bytes + more * growth if storage.workspace is None else storage.workspace.at(microbatch)
            for storage, growth in growing
        ]
        for number in self.scratches:
            scratch = self._scratch_at(microbatch, number)
            assert scratch is not None
            sizes[number] = scratch.bytes_on(processors)
        return sizes

    def _scratch_at(self, microbatch: int, number: int) -> Scratch | None:
        if number not in self.scratches:
            return None
        small, large = self.scratches[number]
        return small.between(self.low, large, self.high, microbatch)


def line_through(low: int, at_low: Record, high: int, at_high: Record) -> RecordLine | None:
    """Return the line through two records; None where they do not correspond or do not grow by whole samples."""
    if len(at_low.storages) != len(at_high.storages) or _lifetimes(at_low) != _lifetimes(at_high):
        return None
    growth = []
    scratches: dict[int, tuple[Scratch, Scratch]] = {}
    for number, (small, large) in enumerate(zip(at_low.storages, at_high.storages, strict=True)):
        if small.scratch is not None and large.scratch is not None:
            if small.scratch.between(low, large.scratch, high, low) is None:
                return None
            growth.append(0)
            scratches[number] = small.scratch, large.scratch
            continue
        if small.workspace is not None:
            growth.append(0)  # it says itself how large it is
            continue
        more, rest = divmod(large.num_bytes - small.num_bytes, high - low)
        # A size that grows in steps, or falls below nothing on either side, lies on no line. Where steps differ by
        # chance, one may be smaller for more samples.
        if rest or more < 0 or small.num_bytes - more * low < 0:
            return None
        growth.append(more)
    return RecordLine(low=low, at_low=at_low, bytes_per_sample=tuple(growth), high=high, scratches=scratches)


def _lifetimes(record: Record) -> list[tuple[int, bool]]:
    return [(number, num_bytes > 0) for number, num_bytes in record.events]
