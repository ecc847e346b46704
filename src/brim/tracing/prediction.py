"""`brim.predict`: the memory and the largest microbatch of a job on a GPU that need not be there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from brim.cases import Case, CaseValue
from brim.devices.catalog import Gpu, find_gpu
from brim.devices.device import check_fill
from brim.errors import InputError, TraceError
from brim.searching.bounds import LARGEST_MICROBATCH
from brim.tracing.allocator import AllocatorFullError, AllocatorPeaks, replay
from brim.tracing.line import RecordLine, line_through
from brim.tracing.overheads import CONTEXT_DOUBT_BYTES, context_bytes, cublas_bytes
from brim.tracing.record import Record
from brim.tracing.remedies import remedy
from brim.tracing.traces import Trace, trace
from brim.units import format_bytes
from brim.workload import Workload, check_class, load

SCHEMA = "brim.prediction/1"
# How many modules are named.
NUM_MODULES = 10
# The sizes traced first: neither is 1, which code likes to treat apart, and both are cheap.
_FIRST_SIZES = (4, 6)
# What is held after one step more than after the last, as a share of the peak, that is no accident; seen this often.
_LEAK = 0.001
_LEAK_STEPS = 4
# By how much the memory of a job may differ from its prediction, as a share: what the libraries take for themselves.
# An assumption, not yet measured.
DOUBT = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak:
    """The most memory that a microbatch needs.

    Attributes:
        allocated_bytes: By tensors, as `torch.cuda.max_memory_allocated` would say.
        reserved_bytes: By torch's allocator, as `torch.cuda.max_memory_reserved` would say.
        device_bytes: On the device in all, with the driver's context, as `nvidia-smi` would say.
    """

    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int


class Prediction:
    """What a trace says about one case on one GPU.

    Attributes:
        largest: The largest microbatch that fits; 0 where not even 1 does.
        interval: Honest bounds on `largest`.
        is_exact: Whether sizes between traces lie on a line, checked by a third trace.
    """

    def __init__(
        self, workload_class: type[Workload], *, gpu: Gpu, case: Case, fill: float = 1.0, cap: int | None = None
    ) -> None:
        self.workload_class = workload_class
        self.gpu = gpu
        self.case = case
        self.fill = fill
        self.cap = cap
        self._traces: dict[int, Trace] = {}
        self._line: RecordLine | None = None
        self._reserved: dict[tuple[int, int | None], AllocatorPeaks | None] = {}
        self._prepare()
        self.largest = self._search(self._capacity_bytes())
        self._check_line()
        self.interval = self._bounds()

    @property
    def kind(self) -> str:
        """What a step of the workload does."""
        return self.workload_class.kind

    @property
    def is_exact(self) -> bool:
        """Whether sizes between traces lie on a line, checked by a third trace."""
        return self._line is not None

    def peak(self, microbatch: int) -> MemoryPeak:
        """Return the peaks of a microbatch; of one that does not fit, what it would need."""
        _check_microbatch(microbatch)
        peaks = self._replay(microbatch, self._capacity_bytes()) or self._replay(microbatch, None)
        assert peaks is not None
        return MemoryPeak(
            allocated_bytes=peaks.allocated_bytes,
            reserved_bytes=peaks.reserved_bytes,
            device_bytes=peaks.reserved_bytes + context_bytes(self.gpu),
        )

    def breakdown(self, microbatch: int) -> dict[str, int]:
        """Return the bytes of every kind of memory at the peak."""
        _check_microbatch(microbatch)
        return self._record(microbatch).breakdown()

    def modules(self, microbatch: int) -> dict[str, int]:
        """Return the bytes that every module holds at the peak, most first."""
        _check_microbatch(microbatch)
        return self._record(microbatch).modules()

    def fits(self, microbatch: int) -> bool:
        """Return whether a microbatch fits."""
        return self._replay(microbatch, self._capacity_bytes()) is not None

    def largest_with(self, saved_bytes: int) -> int:
        """Return the largest microbatch that would fit if the job held that much less whatever its size."""
        # Room can make the allocator cut its segments worse, so a larger size may not fit where a smaller one does.
        return max(self.largest, self._search(self._capacity_bytes(-saved_bytes)))

    def to_dict(self, workload: str, *, microbatch: int | None = None) -> dict[str, Any]:
        """Return the document `brim.prediction/1`."""
        shown = microbatch or max(1, self.largest)
        sizes = sorted({1, max(1, self.largest), self.largest + 1}) if microbatch is None else [microbatch]
        return {
            "schema": SCHEMA,
            "workload": workload,
            "kind": self.kind,
            "case": dict(self.case),
            "gpu": {"name": self.gpu.name, "memory_bytes": self.gpu.memory_bytes},
            "largest": self.largest,
            "interval": list(self.interval),
            "peaks": [
                {"microbatch": size, **asdict(self.peak(size)), "breakdown": self.breakdown(size)} for size in sizes
            ],
            "modules": [
                {"name": name, "bytes": size} for name, size in list(self.modules(shown).items())[:NUM_MODULES]
            ],
        }

    def _prepare(self) -> None:
        low, high = _FIRST_SIZES
        first, second = self._trace(low), self._trace(high)
        if second.peak_bytes <= first.peak_bytes and not _grows(first.record, second.record):
            raise TraceError(
                f"Memory does not grow with the microbatch: {low} and {high} samples both need "
                f"{first.peak_bytes:,} bytes. Make `batch` return as many samples as it is asked for."
            )
        self._check_leak(first)
        self._line = line_through(low, first.record, high, second.record)

    def _check_leak(self, traced: Trace) -> None:
        """Refuse a step after which more is held each time: no microbatch fits that for long."""
        if self.kind != "train" or traced.held_bytes[1] - traced.held_bytes[0] <= _LEAK * traced.peak_bytes:
            return
        longer = trace(
            self.workload_class, self.case, traced.microbatch, steps=_LEAK_STEPS, capability=self.gpu.capability
        )
        growth = [after - before for before, after in pairwise(longer.held_bytes)]
        if all(each > _LEAK * traced.peak_bytes for each in growth):
            module = longer.record.held_longest()
            raise TraceError(
                f"Every step holds {format_bytes(growth[-1])} more than the one before, made in "
                f"{module or 'the step itself'}: something keeps tensors, e.g. a list of losses. "
                "Keep loss.detach() or loss.item() instead, outside of the workload's step."
            )

    def missing_bytes(self, microbatch: int = 1) -> int:
        """Return by how much a microbatch passes the device's memory; 0 where it fits."""
        if self.fits(microbatch):
            return 0
        return max(0, self.peak(microbatch).device_bytes - int(self.gpu.memory_bytes * self.fill))

    def remedy(self, microbatch: int = 1) -> str | None:
        """Return the cheapest change that would make a microbatch fit; None where it fits."""
        missing_bytes = self.missing_bytes(microbatch)
        if not missing_bytes:
            return None
        peak = self.peak(microbatch)
        cached_bytes = peak.reserved_bytes - peak.allocated_bytes
        return remedy(self.breakdown(microbatch), missing_bytes=missing_bytes, cached_bytes=cached_bytes)

    def _trace(self, microbatch: int) -> Trace:
        if microbatch not in self._traces:
            traced = trace(self.workload_class, self.case, microbatch, capability=self.gpu.capability)
            self._traces[microbatch] = traced
        return self._traces[microbatch]

    def _record(self, microbatch: int) -> Record:
        if microbatch in self._traces or self._line is None:
            return self._trace(microbatch).record
        return self._line.at(microbatch)

    def _events(self, microbatch: int) -> tuple[tuple[int, int], ...]:
        """Return what the allocator is asked for, without the rest of a record, which a search does not need."""
        if microbatch in self._traces or self._line is None:
            return self._trace(microbatch).record.events
        return self._line.events_at(microbatch)

    def _replay(self, microbatch: int, capacity_bytes: int | None) -> AllocatorPeaks | None:
        key = (microbatch, capacity_bytes)
        if key not in self._reserved:
            workspaces = cublas_bytes(self.gpu, trains=self.kind == "train")
            events = [(-1 - index, size) for index, size in enumerate(workspaces)]
            events.extend(self._events(microbatch))
            try:
                self._reserved[key] = replay(events, capacity_bytes=capacity_bytes)
            except AllocatorFullError:
                self._reserved[key] = None
        return self._reserved[key]

    def _capacity_bytes(self, doubt_bytes: int = 0) -> int:
        return int(self.gpu.memory_bytes * self.fill) - context_bytes(self.gpu) - doubt_bytes

    def _search(self, capacity_bytes: int) -> int:
        """Return the largest microbatch that a replay fits into the capacity."""
        cap = self.cap or LARGEST_MICROBATCH

        def fits(size: int) -> bool:
            return self._replay(size, capacity_bytes) is not None

        if not fits(1):
            return 0
        low, high = 1, 2
        while high < cap and fits(high):
            low, high = high, high * 2
        if high >= cap:
            if fits(cap):
                return cap
            high = cap
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def _check_line(self) -> None:
        """Trace the answer itself; where it does not lie on the line, search again by traces alone."""
        if self._line is None or self.largest in (0, *self._traces):
            return
        expected = self._line.events_at(self.largest)
        if self._trace(self.largest).record.events == expected:
            return
        self._line = None
        self._reserved.clear()
        self.largest = self._search(self._capacity_bytes())

    def _bounds(self) -> tuple[int, int]:
        doubt_bytes = int(DOUBT * self.gpu.memory_bytes) + CONTEXT_DOUBT_BYTES
        low = self._search(self._capacity_bytes(doubt_bytes))
        high = self._search(self._capacity_bytes(-doubt_bytes))
        return min(low, self.largest), max(high, self.largest)


def _grows(small: Record, large: Record) -> bool:
    return sum(size for _, size in large.events) > sum(size for _, size in small.events)


def predict(
    workload: str | type[Workload],
    *,
    gpu: str | Gpu,
    case: Mapping[str, CaseValue] | None = None,
    fill: float = 1.0,
    cap: int | None = None,
) -> Prediction:
    """Predict the memory and the largest microbatch of a job, without a GPU.

    Args:
        workload: A `Workload` subclass, or its address `"file.py:Name"` or `"package.module:Name"`.
        gpu: A name of the catalog such as `"rtx-3090"`, or a `Gpu`.
        case: The setting of the input shape.
        fill: The share of the GPU's memory that the job may use.
        cap: The largest microbatch to look for.

    Raises:
        InputError: A value cannot be used.
        TraceError: The workload cannot run on fake tensors.
    """
    check_fill(fill)
    if cap is not None:
        _check_microbatch(cap, "cap")
    loaded = load(workload) if isinstance(workload, str) else check_class(workload, repr(workload))
    found = find_gpu(gpu) if isinstance(gpu, str) else gpu
    return Prediction(loaded, gpu=found, case=Case(case or {}), fill=fill, cap=cap)


def _check_microbatch(microbatch: Any, name: str = "microbatch") -> None:
    if not isinstance(microbatch, int) or isinstance(microbatch, bool) or microbatch < 1:
        raise InputError(f"{name} is {microbatch!r}. Use a whole number of at least 1.")
