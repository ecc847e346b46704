"""All ways that a job can go by its values, as one job: of each microbatch the way that takes most."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from brim.cases import Case
from brim.devices.catalog import Gpu
from brim.tracing.branches import Ways, each_way
from brim.tracing.observed import Observed
from brim.tracing.record import Record
from brim.tracing.repetition import Repetition
from brim.tracing.scratch import Processors
from brim.tracing.sizes import TracedSizes
from brim.workload import Workload


class TracedWays:
    """The records of one case on one kind of GPU, of several ways."""

    def __init__(self, ways: Sequence[TracedSizes]) -> None:
        self.workload_class = ways[0].workload_class
        self.case = ways[0].case
        self._ways = ways

    @property
    def is_exact(self) -> bool:
        """Whether sizes between traces lie on a line."""
        return all(way.is_exact for way in self._ways)

    def is_on_line(self, microbatch: int) -> bool:
        """Return whether what is said of a microbatch is the line's, not its own trace's."""
        return all(way.is_on_line(microbatch) for way in self._ways)

    @property
    def has_backward(self) -> bool:
        """Whether a step may run a backward pass."""
        return any(way.has_backward for way in self._ways)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The microbatches that were traced."""
        return tuple(sorted({size for way in self._ways for size in way.sizes}))

    @property
    def most_affordable(self) -> int:
        """The largest microbatch whose traces take not much longer than others."""
        return min(way.most_affordable for way in self._ways)

    def observed(self) -> Observed:
        """Return what the traces so far show: what is odd in a part of the ways only is no oddity of the job."""
        seen = [way.observed() for way in self._ways]
        kinds = {each.other_kind for each in seen}
        return Observed(
            selects_all=any(each.selects_all for each in seen),
            records_graph=all(each.records_graph for each in seen),
            has_recurrence=any(each.has_recurrence for each in seen),
            token_stride=max(each.token_stride for each in seen),
            keeps_batch=any(each.keeps_batch for each in seen),
            is_random=any(each.is_random for each in seen),
            branches=_all_of(way.branches for way in self._ways),
            is_waiting=all(each.is_waiting for each in seen),
            is_unplaced=all(each.is_unplaced for each in seen),
            other_kind=kinds.pop() if len(kinds) == 1 else None,
            unread=tuple(name for name in seen[0].unread if all(name in each.unread for each in seen)),
            missed=_all_of(each.missed for each in seen),
            single_failure=next((each.single_failure for each in seen if each.single_failure), None),
            kept_bytes=max(each.kept_bytes for each in seen),
        )

    def with_least_selected(self) -> TracedWays | None:
        """Return the same where steps select one value, and hardly less is possible; None if that fails."""
        least = [way.with_least_selected() for way in self._ways]
        found = [way for way in least if way is not None]
        return TracedWays(found) if len(found) == len(least) else None

    def holds_for(self, gpu: Gpu) -> bool:
        """Return whether another GPU would trace the same."""
        return all(way.holds_for(gpu) for way in self._ways)

    def record(self, microbatch: int) -> Record:
        """Return every storage of a microbatch with its lifetime."""
        return self._at(microbatch).record(microbatch)

    def events(self, microbatch: int, processors: Processors | None = None) -> tuple[tuple[int, int], ...]:
        """Return what the allocator is asked for."""
        return self._at(microbatch).events(microbatch, processors)

    def peak_bytes(self, microbatch: int, processors: Processors | None = None) -> int:
        """Return the most bytes that are live at once."""
        return self._at(microbatch).peak_bytes(microbatch, processors)

    def cache_drops(self, microbatch: int) -> frozenset[int]:
        """Return which of those events are moments at which the cache is given back."""
        return self._at(microbatch).cache_drops(microbatch)

    def blas_starts(self, microbatch: int) -> tuple[int, ...]:
        """Return which of those events are moments at which a thread first uses cuBLAS."""
        return self._at(microbatch).blas_starts(microbatch)

    def repetition(self, microbatch: int) -> Repetition | None:
        """Return how the last step of those events is repeated."""
        return self._at(microbatch).repetition(microbatch)

    def confirm(self, microbatch: int) -> bool:
        """Trace a microbatch each way; return whether all lie on their lines."""
        on_line = [way.confirm(microbatch) for way in self._ways]
        return all(on_line)

    def runs_alone(self) -> bool:
        """Return whether one sample alone runs, whichever way it goes."""
        return all(way.runs_alone() for way in self._ways)

    def check_growth(self, largest: int) -> None:
        """Refuse a batch that stops growing in the way that takes most."""
        self._at(largest).check_growth(largest)

    def _at(self, microbatch: int) -> TracedSizes:
        return max(self._ways, key=lambda way: way.peak_bytes(microbatch))


Traced = TracedSizes | TracedWays


def trace_each_way(
    workload_class: type[Workload],
    case: Case,
    *,
    capability: tuple[int, int],
    has_fused_attention: bool = True,
    tell: Callable[[str], None] | None = None,
) -> Traced:
    """Trace a case, each way that it can go by its values.

    Raises:
        TraceError: The workload cannot run on fake tensors, ignores the size of its batch, or keeps memory.
    """
    how: Any = {"capability": capability, "has_fused_attention": has_fused_attention, "tell": tell}

    def run(ways: Ways) -> TracedSizes:
        return TracedSizes(workload_class, case, ways=ways, **how)

    found = each_way(run, memory_of=lambda traced: traced.first_events)
    return found[0] if len(found) == 1 else TracedWays(found)


def _all_of(named: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for names in named for name in names))
