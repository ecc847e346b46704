"""`brim.predict`: the memory and the largest microbatch of a job on a GPU that need not be there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from brim.cases import Case, CaseValue
from brim.devices.catalog import Gpu, find_gpu
from brim.devices.context import CONTEXT_DOUBT_BYTES, context_bytes
from brim.devices.device import check_fill
from brim.errors import InputError, TraceError
from brim.searching.bounds import LARGEST_MICROBATCH
from brim.tracing.bracket import Bracket
from brim.tracing.changes import TracedJob
from brim.tracing.observed import Observed
from brim.tracing.overheads import workspaces
from brim.tracing.record import largest_modules
from brim.tracing.remedies import Remedies
from brim.tracing.replays import Replays
from brim.tracing.runtime import Runtime, runtime_here
from brim.tracing.timeline import timeline
from brim.tracing.ways import Traced, trace_each_way
from brim.workload import Workload, check_class, load_here

SCHEMA = "brim.prediction/1"
# Sizes of the curve of memory over the microbatch: enough to draw it, few enough to replay.
NUM_CURVE_SIZES = 8
# How far beyond the size that is shown the curve goes, as a share, so that it is seen to pass the device's memory.
_BEYOND = 0.15
# From which share of the memory on that tensors leave free, what does not fit is said to be fragmented.
_SPARE = 0.01
# By how much the memory of a job may differ from its prediction, as a share: what the libraries take for themselves.
# Source: 84 of 89 measured runs lie within it (benchmarks/prediction.py xmem).
DOUBT = 0.05
# How much too large the answer may be where not every token of a generation is replayed, as a share. Source: with one
# token in 8 of four layers of Llama it is 6.3% too large (`benchmarks/prediction.py tokens`), rounded up.
STRIDE_DOUBT = 0.1


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
    """What traces say about one case on one GPU.

    `context` is what the driver keeps for the process, in bytes, where that was measured.
    """

    def __init__(
        self,
        traced: Traced,
        *,
        gpu: Gpu,
        runtime: Runtime,
        fill: float = 1.0,
        cap: int | None = None,
        context: int | None = None,
    ) -> None:
        self.gpu = gpu
        self.runtime = runtime
        self.case = traced.case
        self.kind = traced.workload_class.kind
        self.fill = fill
        self.cap = cap
        self.context_bytes = context_bytes(gpu, runtime.cuda) if context is None else context
        self._traced = traced
        self._replays = self._replays_with(expandable=runtime.expandable_segments)

    def __repr__(self) -> str:
        # To look at it must not start a search, which may take minutes.
        largest = f", largest={self.largest}" if "_found" in self.__dict__ else ""
        return f"Prediction(gpu={self.gpu.name!r}, case={str(self.case)!r}{largest})"

    @property
    def largest(self) -> int:
        """The largest microbatch that fits; 0 where not even 1 does."""
        return self._found.largest

    @property
    def above(self) -> int | None:
        """The smallest microbatch that was found not to fit; None where the search ended before memory did."""
        return self._found.above

    @property
    def stopped_by(self) -> str:
        """What ended the search: `memory`, the `cap`, or `time`, where a larger microbatch takes too long to trace."""
        if self.above is not None:
            return "memory"
        return "cap" if self.largest >= (self.cap or LARGEST_MICROBATCH) else "time"

    @cached_property
    def interval(self) -> tuple[int, int]:
        """Honest bounds on `largest`; off the line they are interpolated between the sizes that were traced."""
        found = self._found
        low, high = self._bounds
        if self.observed.token_stride > 1:
            low = min(low, int(found.largest * (1 - STRIDE_DOUBT)))
        most = found.largest if found.above is None else max(high, found.largest, self.fits_above or 0)
        if self.observed.selects_all and found.above is not None:
            most = max(most, self._most_with_least_selected())
        return min(low, found.largest), most

    def _most_with_least_selected(self) -> int:
        traced = self._traced.with_least_selected()
        if traced is None:
            return 0
        how: Any = {"gpu": self.gpu, "runtime": self.runtime, "context": self.context_bytes}
        least = Prediction(traced, fill=self.fill, cap=self.cap, **how)
        return max(least.largest, least._bounds[1])

    @cached_property
    def fits_above(self) -> int | None:
        """The largest of a few sizes that fits although `above` does not; None without any.

        How the allocator cuts its segments is no matter of size alone. Sizes are tried up to where tensors alone fill
        the memory; off the line, where each would cost a trace, none is.
        """
        if self.above is None or not self.is_exact:
            return None
        most = max(self._bounds[1], self._replays.filled_at(self.above, self._capacity_bytes()))
        return self._replays.fits_above(self.above, most, self._capacity_bytes())

    @cached_property
    def unfit_below(self) -> int | None:
        """One of a few sizes within the bounds that does not fit although `largest` does; None without any."""
        if not self.largest or not self.is_exact:
            return None
        return self._replays.unfit_below(self.largest, self.interval[0], self._capacity_bytes())

    @cached_property
    def expandable_helps(self) -> bool:
        """Whether with expandable segments all sizes fit up to `fits_above`."""
        if self.fits_above is None or self.runtime.expandable_segments:
            return False
        return self._replays_with(expandable=True).search(self._capacity_bytes()).largest >= self.fits_above

    @property
    def is_exact(self) -> bool:
        """Whether sizes between traces lie on a line, checked by a third trace."""
        return self._traced.is_exact

    @property
    def observed(self) -> Observed:
        """What the traces show beside memory, for whoever reads the answer."""
        return self._traced.observed()

    def peak(self, microbatch: int) -> MemoryPeak:
        """Return the peaks of a microbatch; of one that does not fit, those on a device with just enough more."""
        _check_microbatch(microbatch)
        capacity_bytes = self._capacity_bytes()
        peaks = self._replays.peaks(microbatch, capacity_bytes)
        if peaks is not None:
            reserved_bytes = peaks.reserved_bytes
        else:
            peaks = self._replays.with_room(microbatch, capacity_bytes)
            reserved_bytes = max(peaks.reserved_bytes, capacity_bytes + 1)
        return MemoryPeak(
            allocated_bytes=peaks.allocated_bytes,
            reserved_bytes=reserved_bytes,
            device_bytes=reserved_bytes + self.context_bytes,
        )

    def breakdown(self, microbatch: int) -> dict[str, int]:
        """Return the bytes of every kind of memory at the peak."""
        _check_microbatch(microbatch)
        return self._traced.record(microbatch).breakdown()

    def modules(self, microbatch: int) -> dict[str, int]:
        """Return the bytes that every module holds at the peak, most first."""
        _check_microbatch(microbatch)
        return self._traced.record(microbatch).modules()

    def largest_modules(self, microbatch: int) -> dict[str, int]:
        """Return the ten modules that hold most, and what has no module where it holds as much."""
        return largest_modules(self.modules(microbatch))

    def fits(self, microbatch: int) -> bool:
        """Return whether a microbatch fits."""
        return self._replays.fits(microbatch, self._capacity_bytes())

    def shown_sizes(self) -> list[int]:
        """Return the sizes worth showing: 1 where it runs, the largest and one that does not fit."""
        shown = {max(1, self.largest), self.above or max(1, self.largest)}
        return sorted(shown | {1} if self._traced.runs_alone() else shown)

    def check(self, microbatch: int) -> None:
        """Trace a microbatch, so that what is said of it is its own.

        Raises:
            TraceError: It does not run, as a single sample under batch normalization.
        """
        _check_microbatch(microbatch)
        self._traced.confirm(microbatch)

    def largest_with(self, saved_bytes: int) -> int:
        """Return the largest microbatch that would fit if the job held that much less whatever its size."""
        # Room can make the allocator cut its segments worse, so a larger size may not fit where a smaller one does.
        return max(self.largest, self._replays.search(self._capacity_bytes(saved_bytes)).largest)

    def to_dict(self, workload: str, *, microbatch: int | None = None) -> dict[str, Any]:
        """Return the document `brim.prediction/1`."""
        shown = microbatch or max(1, self.largest)
        sizes = self.shown_sizes() if microbatch is None else [microbatch]
        return {
            "schema": SCHEMA,
            "workload": workload,
            "kind": self.kind,
            "case": dict(self.case),
            "gpu": {"name": self.gpu.name, "memory_bytes": self.gpu.memory_bytes},
            "fill": self.fill,
            "largest": self.largest,
            "interval": list(self.interval),
            "stopped_by": self.stopped_by,
            "fits_above": self.fits_above,
            "unfit_below": self.unfit_below,
            **asdict(self.observed),
            "peaks": [{**self._point(size), **asdict(self.peak(size))} for size in sizes],
            "missing_bytes": self.missing_bytes(shown),
            "remedy": self.remedy(shown),
            "modules": [{"name": name, "bytes": size} for name, size in self.largest_modules(shown).items()],
            "curve": [
                {**self._point(size), "device_bytes": self.peak(size).device_bytes}
                # Off the line every size is a trace of its own.
                for size in (_curve_sizes(shown) if self.is_exact else sizes)
            ],
            "timeline": {
                "microbatch": shown,
                "points": [point.to_dict() for point in timeline(self._traced.record(shown))],
            },
        }

    def missing_bytes(self, microbatch: int = 1) -> int:
        """Return by how much a microbatch passes what it may use of the device; 0 where it fits."""
        return max(0, self.peak(microbatch).device_bytes - int(self.gpu.memory_bytes * self.fill))

    def is_fragmented(self, microbatch: int) -> bool:
        """Return whether a microbatch does not fit although its tensors alone would, with something to spare."""
        most_bytes = (1 - _SPARE) * self._capacity_bytes()
        return not self.fits(microbatch) and self.peak(microbatch).allocated_bytes <= most_bytes

    def remedy(self, microbatch: int = 1) -> str | None:
        """Return the cheapest change that would make a microbatch fit; None where it fits."""
        if self.fits(microbatch):
            return None
        return Remedies(
            TracedJob(record=self._traced.record(microbatch), is_training=self._traced.has_backward),
            capacity_bytes=self._capacity_bytes(),
            workspaces=workspaces(self._traced.blas_starts(microbatch), self.gpu),
            expandable=self.runtime.expandable_segments,
        ).advice()

    @cached_property
    def _bounds(self) -> tuple[int, int]:
        found = self._found  # first, as it decides whether there is a line
        doubt_bytes = int(DOUBT * self.gpu.memory_bytes) + CONTEXT_DOUBT_BYTES
        return self._replays.bounds(found, self._capacity_bytes(), doubt_bytes)

    def _point(self, microbatch: int) -> dict[str, Any]:
        return {"microbatch": microbatch, "fits": self.fits(microbatch), "breakdown": self.breakdown(microbatch)}

    @cached_property
    def _found(self) -> Bracket:
        found = self._replays.search(self._capacity_bytes())
        if found.largest and not self._traced.confirm(found.largest):
            found = self._replays.search(self._capacity_bytes(), start=found.largest)
        if found.above is None:
            self._traced.check_growth(found.largest)
        return found

    def _replays_with(self, *, expandable: bool) -> Replays:
        return Replays(self._traced, gpu=self.gpu, expandable=expandable, cap=self.cap or LARGEST_MICROBATCH)

    def _capacity_bytes(self, more_bytes: int = 0) -> int:
        return int(self.gpu.memory_bytes * self.fill) - self.context_bytes + more_bytes


def predict(
    workload: str | type[Workload],
    *,
    gpu: str | Gpu,
    case: Mapping[str, CaseValue] | None = None,
    fill: float = 1.0,
    cap: int | None = None,
    cuda: str | None = None,
    expandable_segments: bool | None = None,
) -> Prediction:
    """Predict the memory and the largest microbatch of a job, without a GPU.

    Args:
        workload: A `Workload` subclass, or its address `"file.py:Name"` or `"package.module:Name"`.
        gpu: A name of `brim gpus` such as `"rtx-3090"`, what torch calls the GPU, or any other as a `brim.Gpu`.
        case: The setting of the input shape.
        fill: The share of the GPU's memory that the job may use.
        cap: The largest microbatch to look for.
        cuda: The version of CUDA that the job's torch is built for, e.g. `"12.8"`; default: this torch's.
        expandable_segments: Whether the job's allocator has that setting; default: as the environment says.

    Raises:
        InputError: A value cannot be used.
        TraceError: The workload cannot run on fake tensors.
    """
    runtime = runtime_here(cuda=cuda, expandable_segments=expandable_segments)
    return predict_all(workload, gpus=[gpu], cases=[Case(case)], fill=fill, cap=cap, runtime=runtime)[0]


def predict_all(
    workload: str | type[Workload],
    *,
    gpus: Sequence[str | Gpu],
    cases: Sequence[Case],
    runtime: Runtime,
    fill: float = 1.0,
    cap: int | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> list[Prediction]:
    """Predict every case on every GPU; GPUs that run the same kernels share their traces, each told of before."""
    check_fill(fill)
    if cap is not None:
        _check_microbatch(cap, "cap")
    found = [_gpu(gpu) for gpu in gpus]
    loaded = load_here(workload) if isinstance(workload, str) else check_class(workload, repr(workload))
    predictions = []
    for case in cases:
        known: list[Traced] = []
        for gpu in found:
            traced = next((each for each in known if each.holds_for(gpu)), None)
            if traced is None:
                tell(f"tracing {case} for {gpu.name}")
                traced = _trace(loaded, case, gpu, tell)
                known.append(traced)
            predictions.append(Prediction(traced, gpu=gpu, runtime=runtime, fill=fill, cap=cap))
    return predictions


def _gpu(given: str | Gpu) -> Gpu:
    if isinstance(given, str):
        return find_gpu(given)
    if not isinstance(given, Gpu):
        raise InputError(
            f"gpu is {given!r}. Use a name such as gpu='rtx-3090', or brim.Gpu(name=..., memory_bytes=...)."
        )
    return given


def _trace(workload_class: type[Workload], case: Case, gpu: Gpu, tell: Callable[[str], None]) -> Traced:
    try:
        return trace_each_way(
            workload_class,
            case,
            capability=gpu.capability,
            has_fused_attention=gpu.has_fused_attention,
            tell=tell,
        )
    except TraceError as error:
        raise TraceError(f"Case {case}: {error}" if case else str(error)) from error


def _check_microbatch(microbatch: Any, name: str = "microbatch") -> None:
    if not isinstance(microbatch, int) or isinstance(microbatch, bool) or microbatch < 1:
        raise InputError(f"{name} is {microbatch!r}. Use a whole number of at least 1.")


def _curve_sizes(shown: int) -> list[int]:
    """Return sizes from 1 to a little beyond the one that is shown, itself among them."""
    most = max(shown + 1, int(shown * (1 + _BEYOND)))
    between = {round(1 + (most - 1) * step / (NUM_CURVE_SIZES - 1)) for step in range(NUM_CURVE_SIZES)}
    return sorted({*between, shown, shown + 1})
