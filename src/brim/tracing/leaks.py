"""A step that holds more memory each time it runs: no microbatch fits that for long."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from brim.cases import Case
from brim.errors import TraceError
from brim.tracing.branches import Ways
from brim.tracing.record import Record
from brim.tracing.traces import Trace, trace
from brim.units import format_bytes
from brim.workload import Workload

# What a step may leave behind for each run without being a leak, in bytes: losses and counters kept for a log.
_LITTLE_BYTES = 64 * 2**10
# How many steps tell what is made once, such as a buffer or the optimizer's state, from what is made every time.
_LEAK_STEPS = 4


def held_by_steps(record: Record) -> int:
    """Return the bytes that steps made and that are still held after the last."""
    first = record.step_starts[0]
    return sum(record.storages[number].num_bytes for number in record.live_at(len(record.events)) if number >= first)


def check_leak(workload_class: type[Workload], case: Case, traces: Mapping[int, Trace], capability: Any) -> int:
    """Refuse a step after which much more is held each time, and return how much more it is where that is little.

    Args:
        workload_class: What was traced.
        case: The setting of the input shape.
        traces: Traces of two sizes, the smaller first, with as many steps as the workload's kind takes.
        capability: The compute capability that they were traced for.

    Raises:
        TraceError: The step keeps memory; the message names the module that made it.
    """
    if not any(steady_growth(each) > 0 for each in traces.values()):
        return 0
    # A cycle of Python objects is held until the next collection, which may be many steps away, and is no leak.
    collecting = _collecting(workload_class)
    longer = [
        trace(collecting, case, size, steps=_LEAK_STEPS, capability=capability, ways=traced.ways)
        for size, traced in traces.items()
    ]
    growth_bytes = [steady_growth(each) for each in longer]
    if _is_suspicious(growth_bytes):
        module = longer[0].record.held_longest()
        raise TraceError(
            f"Every step holds {format_bytes(steady_growth(longer[0]))} more than the one before at microbatch "
            f"{longer[0].microbatch}, made in {module or 'the step itself'}: something keeps tensors, e.g. a list of "
            "losses or outputs. Keep loss.detach() or loss.item() instead, outside of the workload's step. Fill a "
            "queue of fixed length in `build`."
        )
    return max(0, growth_bytes[0])


def leak_of(workload_class: type[Workload], case: Case, sizes: Sequence[int], ways: Ways = ()) -> str | None:
    """Return what is wrong with a step that keeps memory on the CPU; None where none is kept.

    Args:
        workload_class: What to trace.
        case: The setting of the input shape.
        sizes: Two microbatches, the smaller first.
        ways: Which way branches on values go.
    """
    try:
        traces = {size: trace(workload_class, case, size, steps=_LEAK_STEPS, ways=ways) for size in sizes}
        check_leak(workload_class, case, traces, None)
    except TraceError as error:
        return str(error)
    return None


def steady_growth(traced: Trace) -> int:
    """Return what every step but the first added to what was held, at least."""
    return min((after - before for before, after in pairwise(traced.held_bytes)), default=0)


def _is_suspicious(growth_bytes: list[int]) -> bool:
    """Return whether growth at a smaller and a larger microbatch is more than a little or becomes so with the batch."""
    small, large = growth_bytes
    return small > _LITTLE_BYTES or 0 < small < large


def _collecting(workload_class: type[Workload]) -> type[Workload]:
    """Return the same workload that collects garbage after every step."""

    class Collecting(workload_class):  # type: ignore[misc, valid-type]
        def step(self, batch: Any) -> Any:
            result = super().step(batch)
            gc.collect()
            return result

    return Collecting
