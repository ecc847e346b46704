"""What traces say about one case at any microbatch: two are traced, the rest lie on the line through them."""

from __future__ import annotations

from itertools import pairwise

from brim.cases import Case
from brim.errors import TraceError
from brim.tracing.line import RecordLine, line_through
from brim.tracing.record import Record
from brim.tracing.traces import Trace, trace
from brim.units import format_bytes
from brim.workload import Workload

# The sizes traced first: neither is 1, which code likes to treat apart, and both are cheap.
_FIRST_SIZES = (4, 6)
# What is held after one step more than after the last, as a share of the peak, that is no accident; seen this often.
_LEAK = 0.001
_LEAK_STEPS = 4


class TracedSizes:
    """The records of one case on one kind of GPU.

    Raises:
        TraceError: The workload cannot run on fake tensors, ignores the size of its batch, or keeps memory.
    """

    def __init__(self, workload_class: type[Workload], case: Case, *, capability: tuple[int, int]) -> None:
        self.workload_class = workload_class
        self.case = case
        self._capability = capability
        self._traces: dict[int, Trace] = {}
        low, high = _FIRST_SIZES
        first, second = self._trace(low), self._trace(high)
        if not _grows(first.record, second.record):
            raise TraceError(
                f"Memory does not grow with the microbatch: {low} and {high} samples both need "
                f"{first.peak_bytes:,} bytes. Make `batch` return as many samples as it is asked for."
            )
        self._check_leak(first)
        self._line: RecordLine | None = line_through(low, first.record, high, second.record)

    @property
    def is_exact(self) -> bool:
        """Whether sizes between traces lie on a line."""
        return self._line is not None

    @property
    def num_operations(self) -> int:
        """How many operations the first trace saw."""
        return self._traces[_FIRST_SIZES[0]].num_operations

    def record(self, microbatch: int) -> Record:
        """Return every storage of a microbatch with its lifetime."""
        if microbatch in self._traces or self._line is None:
            return self._trace(microbatch).record
        return self._line.at(microbatch)

    def events(self, microbatch: int) -> tuple[tuple[int, int], ...]:
        """Return what the allocator is asked for, without the rest of a record, which a search does not need."""
        if microbatch in self._traces or self._line is None:
            return self._trace(microbatch).record.events
        return self._line.events_at(microbatch)

    def confirm(self, microbatch: int) -> bool:
        """Trace a microbatch; where it does not lie on the line, return False and trust the line no longer."""
        if self._line is None or microbatch in self._traces:
            return True
        expected = self._line.events_at(microbatch)
        if self._trace(microbatch).record.events == expected:
            return True
        if microbatch > 1:  # one sample alone is often treated apart, which says nothing about more
            self._line = None
        return False

    def _trace(self, microbatch: int) -> Trace:
        if microbatch not in self._traces:
            self._traces[microbatch] = trace(self.workload_class, self.case, microbatch, capability=self._capability)
        return self._traces[microbatch]

    def _check_leak(self, traced: Trace) -> None:
        """Refuse a step after which more is held each time: no microbatch fits that for long."""
        held_bytes = traced.held_bytes
        if self.workload_class.kind != "train" or held_bytes[1] - held_bytes[0] <= _LEAK * traced.peak_bytes:
            return
        longer = trace(
            self.workload_class, self.case, traced.microbatch, steps=_LEAK_STEPS, capability=self._capability
        )
        growth = [after - before for before, after in pairwise(longer.held_bytes)]
        if all(each > _LEAK * traced.peak_bytes for each in growth):
            module = longer.record.held_longest()
            raise TraceError(
                f"Every step holds {format_bytes(growth[-1])} more than the one before, made in "
                f"{module or 'the step itself'}: something keeps tensors, e.g. a list of losses. "
                "Keep loss.detach() or loss.item() instead, outside of the workload's step."
            )


def _grows(small: Record, large: Record) -> bool:
    return sum(size for _, size in large.events) > sum(size for _, size in small.events)
