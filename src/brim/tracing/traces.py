"""Run a workload's step on fake tensors and read its peak from the ledger."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from brim.cases import Case
from brim.errors import TraceError
from brim.tracing.backing import Backing
from brim.tracing.fake import fake_tensors
from brim.tracing.ledger import Ledger
from brim.workload import Workload, prepare

# Optimizer state appears in the first step of training, so only the second shows the peak.
NUM_STEPS = {"train": 2, "eval": 1, "generate": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What one run on fake tensors showed."""

    microbatch: int
    peak_bytes: int
    num_operations: int


def trace(
    workload_class: type[Workload],
    case: Case,
    microbatch: int,
    *,
    steps: int | None = None,
    backing: Backing | None = None,
) -> Trace:
    """Trace one microbatch; raise `TraceError` with the reason where the step cannot run on fake tensors.

    Args:
        workload_class: What to trace.
        case: The setting of the input shape.
        microbatch: How many samples to ask of `batch`.
        steps: How many steps to run; None for as many as it takes to see the peak.
        backing: Real memory to hold behind the fake tensors.
    """
    workload = prepare(workload_class, case, "cpu")
    ledger = Ledger(backing)
    phase = "build"
    try:
        with warnings.catch_warnings(), fake_tensors(), ledger:
            warnings.simplefilter("ignore")
            workload.build()
            phase = "batch"
            batch = workload.batch(microbatch)
            phase = "step"
            for _ in range(steps or NUM_STEPS[workload.kind]):
                workload.step(batch)
    except Exception as error:
        first_line = (str(error) or "no message").splitlines()[0]
        raise TraceError(f"{phase} does not run on fake tensors: {type(error).__name__}: {first_line}") from error
    if ledger.num_operations == 0:
        raise TraceError("the step ran no torch operation on fake tensors")
    return Trace(microbatch=microbatch, peak_bytes=ledger.peak_bytes, num_operations=ledger.num_operations)
