"""Real steps at small sizes on the CPU, beside the traces: what kernels take for themselves.

Libraries of matrix products pack their operands into buffers that they keep. How large these are depends on the
processor and on the shapes: one kind takes 1 to 4 MiB where another takes 12 to 38 (`benchmarks/replay.py`), and at
half of a size mostly as much as at the whole of it. Others, such as LSTMs, take more the larger the batch. So a small
size is rehearsed, and where that is quick a larger one, each in a process of its own.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from brim.cases import Case
from brim.devices.cpu import CpuMeter, peak_data_bytes
from brim.forks import Fork
from brim.searching.curve import MemoryCurve
from brim.tracing.backing import Backing
from brim.tracing.branches import Ways
from brim.tracing.traces import trace
from brim.workload import Workload, prepare

# Which shares of the size that should fit are rehearsed: the second where the first was quick.
SHARE = 1 / 8
LARGER_SHARE = 1 / 2
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
# How long a size may take. Two steps at half of a size are a sixth of what one probe and its confirmation take there.
LONGEST_SECONDS = 20.0
# What kernels and their libraries are taken to keep at least, in bytes, where no larger size ran.
# Source: `benchmarks/replay.py`, where real probes of convolutions took 1 to 4 MiB more than the replay.
KERNEL_BYTES = 4 * 2**20
# How much more of it than the smaller rehearsal showed is expected at a larger size, as a share.
# Source: the same, where matrix products of 267, 1,070 and 2,140 rows took 34, 27 and 37 MiB on one processor.
KERNEL_DOUBT = 0.15
# Which share of the batch's own growth it has to show to be taken to grow with the batch. Source: the same. What LSTMs
# take grew threefold from an eighth of a size to half of it; buffers of matrix products and convolutions 2.2-fold at
# most, and from half of it on they mostly stayed as they were.
_GROWS_FROM = 5 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """What kernels take for themselves.

    Attributes:
        fixed_bytes: Whatever the batch.
        each_bytes: For every sample of it.
        doubt_bytes: How much more it may be at a size that did not run.
        seen_at: The largest size that ran; 0 without any.
    """

    fixed_bytes: int = KERNEL_BYTES
    each_bytes: float = 0.0
    doubt_bytes: int = 0
    seen_at: int = 0

    def bytes_at(self, microbatch: int) -> float:
        """Return what they take for a microbatch, without the doubt."""
        return self.fixed_bytes + self.each_bytes * microbatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """Real steps and the traces of the same steps, each in a process of its own.

    Attributes:
        sizes: The microbatches of both, in rising order.
        real: Runs as many of the sizes as there is time for.
        replayed: Traces a size each.
    """

    sizes: tuple[int, ...]
    real: Fork
    replayed: tuple[Fork, ...]

    @classmethod
    def start(
        cls,
        workload_class: type[Workload],
        case: Case,
        curve: MemoryCurve,
        *,
        goal: int,
        limit_bytes: int,
        ways: Ways = (),
    ) -> Rehearsal | None:
        """Start at shares of the size that should fit; None where the job is too small to tell.

        Args:
            workload_class: What to run.
            case: The setting of the input shape.
            curve: Traced bytes over the microbatch.
            goal: The largest size that is expected to fit.
            limit_bytes: The peak that must not be passed.
            ways: Which way branches on values go in the traces.
        """
        larger = int(goal * LARGER_SHARE)
        smaller = max(int(goal * SHARE), curve.size_at(_LEAST_BYTES, cap=goal) + 1)
        if smaller > larger:
            return None
        sizes = (smaller, larger) if larger > smaller else (smaller,)
        return cls(
            sizes=sizes,
            real=Fork.start(partial(_grown_by_running, workload_class, case, sizes, limit_bytes)),
            replayed=tuple(Fork.start(partial(_grown_by_tracing, workload_class, case, size, ways)) for size in sizes),
        )

    def scratch(self) -> Scratch:
        """Return what kernels should take at a larger size."""
        kernel_bytes = self._kernel_bytes()
        each_bytes = doubt_bytes = 0.0
        match kernel_bytes:
            case [smaller_bytes, larger_bytes]:
                smaller, larger = self.sizes
                if larger_bytes > max(KERNEL_BYTES, _GROWS_FROM * larger / smaller * smaller_bytes):
                    each_bytes = (larger_bytes - smaller_bytes) / (larger - smaller)
                else:  # a step up or down from the one to the other may be followed by another
                    doubt_bytes = abs(larger_bytes - smaller_bytes)
                fixed_bytes = larger_bytes - each_bytes * larger
            case [smaller_bytes]:
                fixed_bytes, doubt_bytes = max(KERNEL_BYTES, smaller_bytes), KERNEL_DOUBT * smaller_bytes
            case _:
                fixed_bytes = KERNEL_BYTES
        return Scratch(
            fixed_bytes=max(0, int(fixed_bytes)),
            each_bytes=each_bytes,
            doubt_bytes=int(doubt_bytes),
            seen_at=self.sizes[len(kernel_bytes) - 1] if kernel_bytes else 0,
        )

    def _kernel_bytes(self) -> list[int]:
        """Wait for all and return by how much more the real process grew, size by size, as far as it came.

        Where it grew less it is not believed: larger batches may run in other kernels.
        """
        replayed = [fork.result() for fork in self.replayed]
        real = self.real.result(seconds=LONGEST_SECONDS * len(self.sizes))
        if not isinstance(real, list):
            return []
        pairs = list(zip(real, replayed, strict=False))
        traced = [pair for pair in pairs if isinstance(pair[1], int)]
        return [max(0, num_bytes - traced_bytes) for num_bytes, traced_bytes in traced] if traced == pairs else []


def _grown_by_running(workload_class: type[Workload], case: Case, sizes: Sequence[int], limit_bytes: int) -> list[int]:
    """Return by how much a process grows over steps of each size, as far as there is time and memory.

    Each has a process of its own: what kernels keep of one size another might not need. The last is this one.
    """
    _make_heap_even()  # of the smaller ones too, which are forked from here
    run = partial(_run_steps, workload_class, case, steps=_NUM_STEPS, limit_bytes=limit_bytes)
    *smaller, last = sizes
    grown: list[int] = []
    for size in smaller:
        result = Fork.start(partial(run, size)).result(seconds=LONGEST_SECONDS)
        if "problem" in result:
            return grown
        grown.append(result["grown_bytes"])
        if _NUM_STEPS * result["step_seconds"] * last / size > LONGEST_SECONDS:
            return grown
    with suppress(Exception):
        grown.append(run(last)["grown_bytes"])
    return grown


def grown_on_own_heap(workload_class: type[Workload], case: Case, size: int, *, steps: int, limit_bytes: int) -> int:
    """Return by how much this process grows over real steps with the allocator as it is."""
    return int(_run_steps(workload_class, case, size, steps=steps, limit_bytes=limit_bytes)["grown_bytes"])


def _run_steps(
    workload_class: type[Workload], case: Case, size: int, *, steps: int, limit_bytes: int
) -> dict[str, Any]:
    """Return by how much this process grows over steps of a size, and what the last of them takes."""
    meter = CpuMeter()
    meter.limit(limit_bytes)
    workload = prepare(workload_class, case, torch.device("cpu"))
    workload.build()
    batch = workload.batch(size)
    step_seconds = 0.0
    for _ in range(steps):
        started = time.monotonic()
        workload.step(batch)
        step_seconds = time.monotonic() - started
    return {"grown_bytes": peak_data_bytes() - meter.baseline_bytes, "step_seconds": step_seconds}


def _grown_by_tracing(workload_class: type[Workload], case: Case, size: int, ways: Ways) -> int:
    _make_heap_even()
    meter = CpuMeter()
    trace(workload_class, case, size, steps=_NUM_STEPS, backing=Backing(), ways=ways)
    return peak_data_bytes() - meter.baseline_bytes


def _make_heap_even() -> None:
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_ARENA_MAX, 1)
    libc.mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
