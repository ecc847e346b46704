"""What every process of the comparison but brim's own does alike: load, limit memory, run whole steps."""

from __future__ import annotations

import os
import resource
import sys
from typing import Any, NoReturn

import torch

from brim import Case, Workload
from brim.workload import load, prepare

__all__ = ["end_with", "is_out_of_memory", "lift_limit", "limit_memory", "load", "make", "run_steps"]

_OOM_TEXTS = ("can't allocate memory", "std::bad_alloc", "Cannot allocate memory")


def limit_memory(limit_bytes: int) -> None:
    """Make every allocation that takes this process above `limit_bytes` of private writable memory fail."""
    # torch's thread pool starts here: started later, with memory full, it would end the process instead of raising.
    torch.ones(2**18).sum()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, hard))


def lift_limit() -> None:
    """Undo `limit_memory`."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def make(workload_class: type[Workload]) -> Workload:
    """Return a workload that is ready to be built."""
    return prepare(workload_class, Case({}), torch.device("cpu"))


def run_steps(workload_class: type[Workload], size: int, *, steps: int) -> None:
    """Build the workload, make one batch and run whole steps on it."""
    workload = make(workload_class)
    workload.build()
    batch = workload.batch(size)
    for _ in range(steps):
        workload.step(batch)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a trial failed for memory; for counting only, the peers decide for themselves."""
    return isinstance(error, MemoryError) or any(text in str(error) for text in _OOM_TEXTS)


def end_with(text: Any) -> NoReturn:
    """Write the last line of standard output and end at once, so that taking torch down is nobody's time."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
