"""One real step at a small size on the CPU, beside the traces: what kernels take for themselves.

Libraries of matrix products pack their operands into buffers that they keep. How large these are depends on the
processor and hardly on the batch: one kind takes 1 to 4 MiB where another takes 12 to 38 (`benchmarks/replay.py`).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import partial

import torch

from brim.cases import Case
from brim.devices.cpu import CpuMeter, peak_data_bytes
from brim.searching.curve import MemoryCurve
from brim.tracing.backing import Backing
from brim.tracing.forks import Fork
from brim.tracing.traces import trace
from brim.workload import Workload, prepare

# Which share of the size that should fit is rehearsed. It runs beside the traces and mostly ends with them.
SHARE = 1 / 8
# The most of that size that is still worth it: a probe tells as much.
_MOST_SHARE = 1 / 2
# Smaller jobs than this, in bytes, tell little of larger ones.
_LEAST_BYTES = 16 * 2**20
# glibc maps 128 MiB of addresses for every thread that asks it for memory and gives half of it back, which would hide
# smaller growth: here all threads share one arena. Source: `new_heap` in glibc's malloc/arena.c, and its malloc.h.
_M_ARENA_MAX = -8
# How long it may take. A step that is slower makes every probe slow as well.
_LONGEST_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A real step and the trace of the same step, each in a process of its own."""

    real: Fork
    replayed: Fork

    @classmethod
    def start(
        cls, workload_class: type[Workload], case: Case, curve: MemoryCurve, *, goal: int, limit_bytes: int
    ) -> Rehearsal | None:
        """Start both at a share of the size that should fit; None where the job is too small to tell.

        Args:
            workload_class: What to run.
            case: The setting of the input shape.
            curve: Traced bytes over the microbatch.
            goal: The largest size that is expected to fit.
            limit_bytes: The peak that must not be passed.
        """
        size = max(int(goal * SHARE), curve.size_at(_LEAST_BYTES, cap=goal) + 1)
        if size > goal * _MOST_SHARE:
            return None
        return cls(
            Fork.start(partial(_grown_by_running, workload_class, case, size, limit_bytes)),
            Fork.start(partial(_grown_by_tracing, workload_class, case, size)),
        )

    def kernel_bytes(self) -> int | None:
        """Wait for both and return by how much more the real process grew; None where either failed."""
        replayed = self.replayed.result()
        real = self.real.result(seconds=_LONGEST_SECONDS)
        if not isinstance(real, int) or not isinstance(replayed, int):
            return None
        return max(0, real - replayed)


def _grown_by_running(workload_class: type[Workload], case: Case, size: int, limit_bytes: int) -> int:
    _share_one_arena()
    meter = CpuMeter()
    meter.limit(limit_bytes)
    workload = prepare(workload_class, case, torch.device("cpu"))
    workload.build()
    workload.step(workload.batch(size))
    return peak_data_bytes() - meter.baseline_bytes


def _grown_by_tracing(workload_class: type[Workload], case: Case, size: int) -> int:
    _share_one_arena()
    meter = CpuMeter()
    trace(workload_class, case, size, steps=1, backing=Backing())
    return peak_data_bytes() - meter.baseline_bytes


def _share_one_arena() -> None:
    ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
