"""What traces say about one case at any microbatch: two are traced, the rest lie on the line through them."""

from __future__ import annotations

from brim.cases import Case
from brim.errors import TraceError
from brim.tracing.leaks import check_leak, held_by_steps
from brim.tracing.line import RecordLine, line_through
from brim.tracing.record import Record
from brim.tracing.traces import Trace, trace
from brim.workload import Workload

# The sizes traced first: neither is 1, which code likes to treat apart, and both are cheap.
_FIRST_SIZES = (4, 6)
# Where something of the first step is held after it, the second needs room beside that.
_STEPS_WITH_STATE = 2


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
        self._steps: int | None = None
        low, high = _FIRST_SIZES
        if len(self._trace(low).held_bytes) < _STEPS_WITH_STATE and held_by_steps(self._trace(low).record):
            self._steps = _STEPS_WITH_STATE
            self._traces.clear()
        first, second = self._trace(low), self._trace(high)
        if not _grows(first.record, second.record):
            raise TraceError(
                f"Memory does not grow with the microbatch: {low} and {high} samples both need "
                f"{first.peak_bytes:,} bytes. Make `batch` return as many samples as it is asked for."
            )
        check_leak(workload_class, case, {low: first, high: second}, capability)
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
            self._traces[microbatch] = trace(
                self.workload_class, self.case, microbatch, steps=self._steps, capability=self._capability
            )
        return self._traces[microbatch]


def _grows(small: Record, large: Record) -> bool:
    return sum(size for _, size in large.events) > sum(size for _, size in small.events)
