"""Traces of a few sizes, each in a process of its own, until memory near a limit is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from brim.cases import Case
from brim.devices.catalog import Gpu
from brim.devices.cpu import CpuMeter, is_mapped, noise, peak_data_bytes
from brim.errors import TraceError
from brim.forks import Fork, in_forks
from brim.searching.curve import NEAR_GOAL, MemoryCurve, curve_through, next_to_trace
from brim.searching.guided import HEAP_SLOPE, LIVE_SLOPE, MAPPED_SLOPE, MOST_WASTE, expected_curve, first_aim
from brim.tracing.backing import Backing
from brim.tracing.branches import OpenBranchError, Way, Ways, each_way
from brim.tracing.leaks import leak_of, steady_growth
from brim.tracing.prediction import Prediction
from brim.tracing.rehearsal import LONGEST_SECONDS, Rehearsal, Scratch, grown_on_own_heap
from brim.tracing.runtime import runtime_here
from brim.tracing.traces import Trace, trace
from brim.tracing.ways import trace_each_way
from brim.workload import Workload

# How many sizes a curve may cost.
MOST_POINTS = 8
# How many are enough for a line.
_FEWEST_POINTS = 2
# How many steps a trace repeats at most: the heap hardly grows after three, and outside of it nothing after two.
_HEAP_STEPS = 3
_MAPPED_STEPS = 2
# How far the goal may be from a size that was traced, as a ratio: on the heap, where sizes of which tensors are just
# below 32 MiB waste the most and those just above it the least, and where no heap is in play.
_HEAP_NEAR = 1.04
_MAPPED_NEAR = 1.25
# How far above the goal live bytes alone may fill the limit, as a ratio, before the allocator is asked there as well.
_WORTH_A_LOOK = 1.25
# What a process that traces may have, in bytes, beside the job's own limit and what the heap may waste of it: for its
# imports and its ledger.
_TRACE_BYTES = 2**30
# After how many seconds no further size is traced: a probe tells more by then.
_ENOUGH_SECONDS = 30.0
# How many times as large as what was traced a size may be for real steps at a share of it: memory may grow with the
# square of the batch, so that a first guess is far above what fits.
_MOST_REHEARSED = 8
# At which size, at most, it is found out which way branches on values take most: a few samples of most jobs take less
# than their weights.
_WAYS_TRACED_AT = 64
_NO_SCRATCH = Scratch(fixed_bytes=0)
# How much of what the heap wastes in a trace it wastes in a real run, as a ratio, where that was not measured; and
# which share of how far a real run differs from its trace is believed, since another run would differ otherwise, up to
# which ratio. Source: `benchmarks/replay.py`, where real runs of convolutions mostly waste less than the replay, others
# up to a half more.
_UNMEASURED_WASTE = 1.25
_BELIEVED = 2 / 3
_MOST_WASTE = 1.5


@dataclass(slots=True, kw_only=True)
class TracedCurve:
    """What was traced so far.

    Attributes:
        baseline_bytes: What the process holds before the workload is built.
        scratch: What kernels and their libraries take for themselves; on the CPU only.
        once_bytes: What building takes that is no tensor's, such as modules that it imports; on the CPU only.
        shared_bytes: What modules take that building asks for and tracing had imported already; on the CPU only.
        live: Traced bytes by microbatch.
        grown: By how much a real process grows over the same requests, beside that; on the CPU only.
        unasked: Measured bytes to expect for each traced one where the allocator was not asked.
        waste_ratio: How much of what the allocator took in traces, with what kernels take, it takes in real steps;
            None where that was not measured.
        slope: Measured bytes to expect for each traced one at the largest size that is expected to fit.
        gap_from: Where sizes begin that need more memory than the largest that is expected to fit; None without any.
        leak: What is wrong with a step that holds more each time; None where it does not; on the CPU only.
    """

    baseline_bytes: int = 0
    scratch: Scratch = _NO_SCRATCH
    once_bytes: int = 0
    shared_bytes: int = 0
    live: dict[int, int] = field(default_factory=dict)
    grown: dict[int, int] = field(default_factory=dict)
    unasked: float = 1.0
    waste_ratio: float | None = None
    slope: float = 1.0
    gap_from: int | None = None
    leak: str | None = None

    @property
    def around_bytes(self) -> int:
        """What the process holds that is no tensor's."""
        kernel_bytes = self.scratch.fixed_bytes + self.scratch.doubt_bytes
        return self.baseline_bytes + kernel_bytes + self.once_bytes + self.shared_bytes

    @property
    def points(self) -> dict[int, int]:
        """What was traced, by microbatch, with what kernels take for so many samples."""
        return {size: num_bytes + int(self.scratch.each_bytes * size) for size, num_bytes in self.live.items()}

    def target_bytes(self, limit_bytes: int, cap: int) -> float:
        """Return the traced bytes at which the limit is expected."""
        if not self.live:
            return max(0, limit_bytes - self.around_bytes) / self.slope
        return curve_through(self.points).bytes_at(self.goal(limit_bytes, cap))

    def goal(self, limit_bytes: int, cap: int) -> int:
        """Return the largest size that is expected to fit."""
        room_bytes = max(0, limit_bytes - self.around_bytes)
        if not self.grown or self.gap_from is not None:
            return curve_through(self.points).size_at(room_bytes / self.slope, cap=cap)
        return self.expected().size_at(room_bytes, cap=cap)

    def expected(self) -> MemoryCurve:
        """Return what a process should need over the microbatch, beside what it holds in any case."""
        return expected_curve(self.points, waste=self.waste(), unasked=self.unasked)

    def waste(self) -> dict[int, int]:
        """Return what the allocator should take more than tensors and kernels have, by microbatch."""
        return {size: self._waste_at(size) for size in self.grown}

    def learn_waste(self, microbatch: int, grown_bytes: int) -> None:
        """Compare by how much a process grew over real steps with what its trace at the same size shows."""
        traced_bytes = self.grown[microbatch] - self.live[microbatch] + self.scratch.bytes_at(microbatch)
        ratio = (grown_bytes - self.once_bytes - self.live[microbatch]) / max(1.0, traced_bytes)
        self.waste_ratio = min(1 + _BELIEVED * (max(0.0, ratio) - 1), _MOST_WASTE)

    def _waste_at(self, microbatch: int) -> int:
        traced_bytes = self.grown[microbatch] - self.live[microbatch]
        if self.waste_ratio is None:
            return max(0, int(_UNMEASURED_WASTE * traced_bytes))
        kernel_bytes = self.scratch.bytes_at(microbatch)
        return max(0, int(self.waste_ratio * (traced_bytes + kernel_bytes) - kernel_bytes))

    def enter(self, results: Mapping[int, Mapping[str, Any]]) -> None:
        """Add what traces of some sizes returned."""
        for size, result in results.items():
            self.live[size] = result["peak_bytes"]
            if result.get("grown_bytes") is not None:
                self.once_bytes, self.shared_bytes = result["once_bytes"], result["shared_bytes"]
                self.grown[size] = result["grown_bytes"] - result["once_bytes"]


def trace_curve(
    workload_class: type[Workload],
    case: Case,
    *,
    baseline_bytes: int,
    limit_bytes: int,
    cap: int,
    steps: int,
    backed: bool,
    shared_bytes: int = 0,
    ways: Ways | None = None,
) -> TracedCurve:
    """Trace as many sizes as it takes to know the memory near a limit.

    Args:
        workload_class: What to trace.
        case: The setting of the input shape.
        baseline_bytes: What the process holds before the workload is built.
        limit_bytes: The peak that must not be passed.
        cap: The largest microbatch to trace.
        steps: How many steps a probe will run: the CPU's heap still grows after the first.
        backed: Whether the job will run on the CPU and this process may fork, so that the real allocator can be asked.
        shared_bytes: What modules take that only tracing has imported here, and the job may as well.
        ways: Which way branches on values go; None to find out which takes most where there are any.
    """
    if ways is None:
        how: Any = {"steps": steps, "backed": backed, "shared_bytes": shared_bytes}
        near: Any = {"baseline_bytes": baseline_bytes, "limit_bytes": limit_bytes, "cap": cap}
        try:
            return trace_curve(workload_class, case, **near, **how, ways=())
        except OpenBranchError:
            ways = _worst_way(workload_class, case, min(cap, _WAYS_TRACED_AT), backed=backed)
    mapped = backed and is_mapped()
    unasked = MAPPED_SLOPE if mapped else HEAP_SLOPE if backed else LIVE_SLOPE
    near = _MAPPED_NEAR if mapped else _HEAP_NEAR if backed else NEAR_GOAL
    aim_bytes = int(first_aim(limit_bytes, noise()))
    scratch = Scratch() if backed else _NO_SCRATCH
    curve = TracedCurve(
        baseline_bytes=baseline_bytes,
        scratch=scratch,
        unasked=unasked,
        waste_ratio=1.0 if mapped else None,  # whole pages, in traces as in runs
        slope=unasked,
    )
    # The process that traces must be as fresh as a probe's, so it is forked from this one, in which nothing ran yet.
    traced_steps = min(steps, _MAPPED_STEPS if mapped else _HEAP_STEPS)
    room_bytes = int(MOST_WASTE * limit_bytes) + _TRACE_BYTES
    in_room = partial(_trace_in_forks, room_bytes=room_bytes, shared_bytes=shared_bytes)
    trace_sizes = in_room if backed else _trace_here
    run = partial(trace_sizes, workload_class, case, steps=traced_steps, ways=ways)
    ask_heap = partial(_ask_heap, curve, workload_class, case, run, steps=traced_steps, limit_bytes=limit_bytes)
    rehearsal, may_rehearse, started = None, backed, time.monotonic()
    grows = False
    while len(curve.live) < MOST_POINTS:
        if len(curve.live) >= _FEWEST_POINTS and time.monotonic() - started > _ENOUGH_SECONDS:
            break
        sizes = next_to_trace(curve.points, target_bytes=curve.target_bytes(aim_bytes, cap), cap=cap, near=near)
        if not sizes and rehearsal is None:
            break
        try:
            results = run(sizes)
            curve.enter(results)
            grows |= any(result.get("growth_bytes", 0) > 0 for result in results.values())
        except TraceError:
            if len(curve.live) < _FEWEST_POINTS:
                raise
            break  # one size fails where others ran, e.g. BatchNorm on a single sample
        if rehearsal is not None:
            curve.scratch = rehearsal.scratch()
            if curve.scratch.seen_at == rehearsal.sizes[-1] and not mapped:
                ask_heap(curve.scratch.seen_at)
            rehearsal = None
        goal = curve.goal(aim_bytes, cap)
        if may_rehearse and len(curve.live) >= _FEWEST_POINTS and goal <= _MOST_REHEARSED * max(curve.live):
            traced = curve_through(curve.live)
            rehearsal = Rehearsal.start(workload_class, case, traced, goal=goal, limit_bytes=limit_bytes, ways=ways)
            may_rehearse = False
    if rehearsal is not None:
        curve.scratch = rehearsal.scratch()
    if grows:
        (curve.leak,) = in_forks([partial(leak_of, workload_class, case, sorted(curve.live)[:2], ways)])
    if curve.grown and time.monotonic() - started < _ENOUGH_SECONDS:
        _look_above(curve, aim_bytes, cap, run, limit_bytes=limit_bytes)
    if curve.grown and curve.gap_from is None:
        goal = max(1, curve.goal(aim_bytes, cap))
        curve.slope = curve.expected().bytes_at(goal) / max(1.0, curve_through(curve.points).bytes_at(goal))
    return curve


def _worst_way(workload_class: type[Workload], case: Case, size: int, *, backed: bool) -> Ways:
    """Return which way branches on values go where a size takes most; which way a run goes, probes will show."""
    find = partial(_ways_by_peak, workload_class, case, size)
    result = in_forks([find])[0] if backed else find()
    if "problem" in result:
        raise TraceError(result["problem"])
    return tuple(Way(way) for way in result["ways"])


def _ways_by_peak(workload_class: type[Workload], case: Case, size: int) -> dict[str, Any]:
    def run(ways: Ways) -> Trace:
        return trace(workload_class, case, size, ways=ways)

    try:
        traces = each_way(run, memory_of=lambda traced: traced.record.events)
    except TraceError as error:
        return {"problem": str(error)}
    return {"ways": [way.value for way in max(traces, key=lambda traced: traced.peak_bytes).ways]}


def _ask_heap(
    curve: TracedCurve,
    workload_class: type[Workload],
    case: Case,
    run: Callable[[Sequence[int]], dict[int, dict[str, Any]]],
    size: int,
    *,
    steps: int,
    limit_bytes: int,
) -> None:
    """Learn from real steps at a size how much of what the heap wastes in traces it wastes in a run."""
    how = {"steps": steps, "limit_bytes": limit_bytes}
    real = Fork.start(partial(grown_on_own_heap, workload_class, case, size, **how))
    with suppress(TraceError):
        curve.enter(run([size]))
    grown_bytes = real.result(seconds=LONGEST_SECONDS)
    if size in curve.grown and isinstance(grown_bytes, int):
        curve.learn_waste(size, grown_bytes)


def _look_above(
    curve: TracedCurve,
    aim_bytes: int,
    cap: int,
    run: Callable[[Sequence[int]], dict[int, dict[str, Any]]],
    *,
    limit_bytes: int,
) -> None:
    """Go on to a size far above the goal if the allocator serves it better.

    glibc keeps tensors of less than 32 MiB in a heap, where a half can be waste, and gives larger ones a mapping of
    their own. So a larger microbatch can need less memory.
    """
    goal = curve.goal(aim_bytes, cap)
    most = curve_through(curve.points).size_at(aim_bytes - curve.around_bytes, cap=cap)
    if most <= _WORTH_A_LOOK * goal:
        return
    above = replace(curve, live=dict(curve.live), grown=dict(curve.grown))
    try:
        above.enter(run([most]))
        wasted_bytes = above.waste().get(most, 0)
        above.slope, above.gap_from = 1 + wasted_bytes / above.points[most], goal
        larger = above.goal(aim_bytes, cap)
        above.enter(run([larger]))
    except TraceError:
        return
    needed_bytes = above.around_bytes + above.points[larger] + above.waste().get(larger, limit_bytes)
    if needed_bytes <= limit_bytes and larger > _WORTH_A_LOOK * goal:
        curve.live, curve.slope, curve.gap_from = above.live, above.slope, goal


def predict_curve(
    workload_class: type[Workload],
    case: Case,
    *,
    capability: tuple[int, int],
    baseline_bytes: int,
    limit_bytes: int,
    cap: int,
) -> TracedCurve:
    """Predict the memory near a limit on a CUDA device: what torch's allocator will have reserved."""
    gpu = Gpu(name="cuda", memory_bytes=limit_bytes, capability=capability)
    how: Any = {"gpu": gpu, "runtime": runtime_here(), "cap": cap, "context": baseline_bytes}
    prediction = Prediction(trace_each_way(workload_class, case, capability=capability), **how)
    largest = max(1, prediction.largest)
    sizes = {max(1, largest // 2), largest, min(cap, largest + 1), min(cap, 2 * largest)}
    reserved = {size: prediction.peak(size).reserved_bytes for size in sorted(sizes)}
    return TracedCurve(baseline_bytes=baseline_bytes, live=reserved)


def _trace_here(
    workload_class: type[Workload], case: Case, sizes: Sequence[int], *, steps: int, ways: Ways
) -> dict[int, dict[str, Any]]:
    """Trace one size after the other, for live bytes alone, which more steps do not change."""
    return {size: {"peak_bytes": trace(workload_class, case, size, ways=ways).peak_bytes} for size in sizes}


def _trace_in_forks(
    workload_class: type[Workload],
    case: Case,
    sizes: Sequence[int],
    *,
    steps: int,
    room_bytes: int,
    shared_bytes: int = 0,
    ways: Ways = (),
) -> dict[int, dict[str, Any]]:
    """Trace all sizes at the same time, in processes that get no more memory than they need for that."""
    how = steps, room_bytes, shared_bytes, ways
    results = in_forks([partial(trace_with_backing, workload_class, case, size, *how) for size in sizes])
    for result in results:
        if "problem" in result:
            raise (OpenBranchError if result.get("is_open") else TraceError)(result["problem"])
    return dict(zip(sizes, results, strict=True))


def trace_with_backing(
    workload_class: type[Workload],
    case: Case,
    size: int,
    steps: int,
    room_bytes: int,
    shared_bytes: int,
    ways: Ways = (),
) -> dict[str, Any]:
    """Trace a size with real memory behind it; return live bytes and by how much this process grew, once and in all."""
    meter, backing = CpuMeter(), Backing(shared_bytes)
    try:
        meter.limit(room_bytes)  # a step may also make arrays that are no tensors, and so are no fakes
        traced = trace(workload_class, case, size, steps=steps, backing=backing, ways=ways)
    except TraceError as error:
        return {"problem": str(error), "is_open": isinstance(error, OpenBranchError)}
    except (KeyboardInterrupt, SystemExit) as error:  # raised by the workload: no Ctrl-C comes to this process
        return {"problem": f"the workload raised {type(error).__name__}"}
    grown_bytes = peak_data_bytes() - meter.baseline_bytes if backing.is_complete else None
    return {
        "peak_bytes": traced.peak_bytes,
        "growth_bytes": steady_growth(traced),
        "grown_bytes": grown_bytes,
        "once_bytes": backing.once_bytes,
        "shared_bytes": backing.shared_bytes,
    }
