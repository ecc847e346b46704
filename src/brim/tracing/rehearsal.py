"""Two real steps at a small size on the CPU, beside the traces: what kernels take for themselves.

Libraries of matrix products pack their operands into buffers that they keep. How large these are depends on the
processor and hardly on the batch: one kind takes 1 to 4 MiB where another takes 12 to 38 (`benchmarks/replay.py`).
Others, such as transposed convolutions, take more the larger the batch. So where a small size takes much, a larger one
is rehearsed as well.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from brim.cases import Case
from brim.devices.cpu import CpuMeter, peak_data_bytes
from brim.forks import Fork
from brim.searching.curve import MemoryCurve
from brim.tracing.backing import Backing
from brim.tracing.traces import trace
from brim.workload import Workload, prepare

# Which share of the size that should fit is rehearsed. It runs beside the traces and mostly ends with them.
SHARE = 1 / 8
# The most of that size that is still worth it: a probe tells as much.
_MOST_SHARE = 1 / 2
# Smaller jobs than this, in bytes, tell little of larger ones.
_LEAST_BYTES = 16 * 2**20
# glibc maps 128 MiB of addresses for every thread that asks it for memory and gives half of it back, which would hide
# smaller growth: here all threads share one arena. And what its heap wastes differs between equal processes: here every
# tensor that matters has a mapping of its own. Source: `new_heap` in glibc's malloc/arena.c, and its malloc.h.
_M_ARENA_MAX = -8
_M_MMAP_THRESHOLD = -3
_MAPPED_FROM_BYTES = 128 * 2**10
# The first step makes what the optimizer keeps, the second finds it there.
_NUM_STEPS = 2
# How long it may take. A step that is slower makes every probe slow as well.
_LONGEST_SECONDS = 5.0


# What kernels and their libraries take for themselves at least, in bytes, whatever the batch.
# Source: `benchmarks/replay.py`, where real probes of convolutions took 1 to 4 MiB more than the replay.
KERNEL_BYTES = 4 * 2**20
# How much more of it than a rehearsal showed is expected at a larger size, as a share.
# Source: the same, where matrix products of 275, 1,000 and 2,200 rows took 36, 28 and 38 MiB on one processor.
KERNEL_DOUBT = 0.15
# From which share of the traced bytes on it may grow with the batch, so that a second size is worth its time.
_WORTH_ANOTHER = 0.08
# How many times as large the second size is.
_LARGER = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """What kernels take for themselves.

    Attributes:
        fixed_bytes: Whatever the batch.
        each_bytes: For every sample of it.
    """

    fixed_bytes: int = KERNEL_BYTES
    each_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """Real steps and the trace of the same steps, each in a process of its own.

    Attributes:
        size: The microbatch of both.
        live_bytes: Its traced bytes.
        goal: The largest size that is expected to fit.
        start_at: Starts another, at a larger size.
    """

    size: int
    live_bytes: float
    goal: int
    start_at: Callable[[int], Rehearsal]
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

        def start_at(size: int) -> Rehearsal:
            return cls(
                size=size,
                live_bytes=curve.bytes_at(size),
                goal=goal,
                start_at=start_at,
                real=Fork.start(partial(_grown_by_running, workload_class, case, size, limit_bytes)),
                replayed=Fork.start(partial(_grown_by_tracing, workload_class, case, size)),
            )

        return start_at(size)

    def scratch(self) -> Scratch:
        """Return what kernels should take, after a second rehearsal where that may grow with the batch."""
        taken_bytes, each_bytes = self._kernel_bytes() or 0, 0.0
        larger = _LARGER * self.size
        if taken_bytes > max(KERNEL_BYTES, _WORTH_ANOTHER * self.live_bytes) and larger <= self.goal * _MOST_SHARE:
            more_bytes = self.start_at(larger)._kernel_bytes() or 0
            each_bytes = max(0.0, (more_bytes - taken_bytes) / (larger - self.size))
        fixed_bytes = taken_bytes - each_bytes * self.size
        return Scratch(
            fixed_bytes=max(KERNEL_BYTES, int((1 + KERNEL_DOUBT) * fixed_bytes)),
            each_bytes=(1 + KERNEL_DOUBT) * each_bytes,
        )

    def _kernel_bytes(self) -> int | None:
        """Wait for both and return by how much more the real process grew; None where either failed.

        One that grew less is not believed: larger batches may run in other kernels.
        """
        replayed = self.replayed.result()
        real = self.real.result(seconds=_LONGEST_SECONDS)
        if not isinstance(real, int) or not isinstance(replayed, int):
            return None
        return max(0, real - replayed)


def _grown_by_running(workload_class: type[Workload], case: Case, size: int, limit_bytes: int) -> int:
    _make_heap_even()
    meter = CpuMeter()
    meter.limit(limit_bytes)
    workload = prepare(workload_class, case, torch.device("cpu"))
    workload.build()
    batch = workload.batch(size)
    for _ in range(_NUM_STEPS):
        workload.step(batch)
    return peak_data_bytes() - meter.baseline_bytes


def _grown_by_tracing(workload_class: type[Workload], case: Case, size: int) -> int:
    _make_heap_even()
    meter = CpuMeter()
    trace(workload_class, case, size, steps=_NUM_STEPS, backing=Backing())
    return peak_data_bytes() - meter.baseline_bytes


def _make_heap_even() -> None:
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_ARENA_MAX, 1)
    libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
