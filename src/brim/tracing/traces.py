"""Run a workload's step on fake tensors and read its peak from the ledger."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from brim.cases import Case
from brim.errors import TraceError
from brim.searching.curve import next_to_trace
from brim.tracing.fake import fake_tensors
from brim.tracing.ledger import Ledger
from brim.workload import Workload, prepare

# Optimizer state appears in the first step of training, so only the second shows the peak.
NUM_STEPS = {"train": 2, "eval": 1, "generate": 1}
# How many sizes a curve may cost.
MOST_POINTS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What one run on fake tensors showed."""

    microbatch: int
    peak_bytes: int
    num_operations: int
    events: tuple[tuple[int, int], ...]


def trace(workload_class: type[Workload], case: Case, microbatch: int) -> Trace:
    """Trace one microbatch; raise `TraceError` with the reason where the step cannot run on fake tensors."""
    workload = prepare(workload_class, case, "cpu")
    ledger = Ledger()
    phase = "build"
    try:
        with warnings.catch_warnings(), fake_tensors(), ledger:
            warnings.simplefilter("ignore")
            workload.build()
            phase = "batch"
            batch = workload.batch(microbatch)
            phase = "step"
            for _ in range(NUM_STEPS[workload.kind]):
                workload.step(batch)
    except Exception as error:
        first_line = (str(error) or "no message").splitlines()[0]
        raise TraceError(f"{phase} does not run on fake tensors: {type(error).__name__}: {first_line}") from error
    if ledger.num_operations == 0:
        raise TraceError("the step ran no torch operation on fake tensors")
    return Trace(
        microbatch=microbatch,
        peak_bytes=ledger.peak_bytes,
        num_operations=ledger.num_operations,
        events=tuple(ledger.events),
    )


def trace_curve(
    workload_class: type[Workload],
    case: Case,
    *,
    target_bytes: float,
    cap: int,
    measure: Callable[[Trace], int] = lambda traced: traced.peak_bytes,
) -> Mapping[int, int]:
    """Trace as many sizes as it takes to know the memory near `target_bytes`; `measure` reads it from a trace."""
    points: dict[int, int] = {}
    while (size := next_to_trace(points, target_bytes=target_bytes, cap=cap, most=MOST_POINTS)) is not None:
        points[size] = measure(trace(workload_class, case, size))
    return points
