"""What runs on a phantom say of one case on one GPU, in the form that predictions have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from brim.cases import Case
from brim.devices.catalog import Gpu
from brim.devices.context import CONTEXT_DOUBT_BYTES
from brim.findings import Finding
from brim.probing.phantoms import Observation

SCHEMA = "brim.prediction/1"
# Kinds of memory in the order in which they are shown.
KINDS = ("parameters", "gradients", "optimizer", "activations", "inputs", "temporary")
# How many modules are named.
NUM_MODULES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The most memory that a microbatch took; of one that did not fit, what it had and asked for."""

    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhantomPrediction:
    """The answer for one case on one GPU, every size of it run on a phantom.

    Attributes:
        finding: The search; of one size alone, its probe.
        observations: What the sizes took that were run.
        num_gpus: How many of them the job sees.
    """

    gpu: Gpu
    finding: Finding
    observations: Mapping[int, Observation]
    kind: str
    fill: float
    cap: int | None
    num_gpus: int = 1
    engine: str = field(default="phantom", init=False)

    @property
    def case(self) -> Case:
        """The setting of the input shape."""
        return self.finding.case

    @property
    def largest(self) -> int:
        """The largest microbatch that was run and fitted; 0 where none did."""
        return max((size for size, seen in self.observations.items() if seen.fits), default=0)

    @property
    def above(self) -> int | None:
        """The smallest microbatch above it that was run and did not fit."""
        failed = (size for size, seen in self.observations.items() if not seen.fits and size > self.largest)
        return min(failed, default=None)

    @property
    def stopped_by(self) -> str:
        """What ended the search."""
        return self.finding.stopped_by

    @property
    def interval(self) -> tuple[int, int]:
        """Bounds on the largest by what is not known of a card: what the driver's context takes."""
        fitted = sorted((size, seen.device_bytes) for size, seen in self.observations.items() if seen.fits)
        if len(fitted) < 2 or self.above is None:
            return self.largest, self.largest
        (smaller, less), (larger, more) = fitted[-2:]
        each_bytes = max(1.0, (more - less) / (larger - smaller))
        doubt = int(CONTEXT_DOUBT_BYTES / each_bytes) + 1
        return max(min(1, self.largest), self.largest - doubt), self.largest + doubt

    @property
    def remarks(self) -> list[str]:
        """What to know when reading the answer."""
        said = dict.fromkeys(text for seen in self.observations.values() for text in seen.remarks)
        notes = [] if self.finding.note is None else [self.finding.note[:1].upper() + self.finding.note[1:] + "."]
        failed = next((p for p in self.finding.probes if p.microbatch == self.above and p.detail), None)
        refusal = [] if failed is None else [f"Microbatch {failed.microbatch:,} does not fit: {failed.detail}."]
        if self.stopped_by == "cap":
            notes.append(f"The search stopped at the cap of {self.largest:,}, not at the end of the memory.")
        return [*refusal, *notes, *said]

    def shown_sizes(self) -> list[int]:
        """Return the sizes worth showing: the smallest, the largest that fits and the one above."""
        sizes = {min(self.observations), self.largest, self.above}
        return sorted(size for size in sizes if size)

    def fits(self, microbatch: int) -> bool:
        """Return whether a microbatch that was run fitted."""
        return self.observations[microbatch].fits

    def peak(self, microbatch: int) -> Peak:
        """Return what a microbatch that was run took."""
        seen = self.observations[microbatch]
        if seen.fits:
            return Peak(
                allocated_bytes=seen.allocated_bytes, reserved_bytes=seen.reserved_bytes, device_bytes=seen.device_bytes
            )
        allocated_bytes = (seen.held.num_bytes if seen.held else seen.allocated_bytes) + seen.asked_bytes
        reserved_bytes = max(allocated_bytes, seen.reserved_bytes)
        limit_bytes = int(self.gpu.memory_bytes * self.fill)
        context_bytes = max(0, seen.device_bytes - seen.reserved_bytes)
        return Peak(
            allocated_bytes=allocated_bytes,
            reserved_bytes=reserved_bytes,
            device_bytes=max(limit_bytes + 1, reserved_bytes + context_bytes),
        )

    def breakdown(self, microbatch: int) -> dict[str, int]:
        """Return the bytes of every kind of memory at the peak."""
        held = self.observations[microbatch].held
        return {kind: held.by_kind.get(kind, 0) if held else 0 for kind in KINDS}

    def largest_modules(self, microbatch: int) -> dict[str, int]:
        """Return the modules that hold most at the peak, most first."""
        held = self.observations[microbatch].held
        return dict(list(held.by_module.items())[:NUM_MODULES]) if held else {}

    def is_fragmented(self, microbatch: int) -> bool:
        """Return whether a microbatch did not fit although its tensors alone would have."""
        seen = self.observations[microbatch]
        if seen.fits or seen.held is None:
            return False
        context_bytes = max(0, seen.device_bytes - seen.reserved_bytes)
        needed_bytes = seen.held.num_bytes + seen.asked_bytes + context_bytes
        return needed_bytes <= int(self.gpu.memory_bytes * self.fill)

    def missing_bytes(self, microbatch: int) -> int:
        """Return by how much a microbatch at least passes what it may use; 0 where it fits."""
        return max(0, self.peak(microbatch).device_bytes - int(self.gpu.memory_bytes * self.fill))

    def to_dict(self, workload: str, *, microbatch: int | None = None) -> dict[str, Any]:
        """Return the document `brim.prediction/1`."""
        shown = microbatch or self.largest or min(self.observations)
        peaks = [self._point(size) for size in sorted(self.observations)]
        return {
            "schema": SCHEMA,
            "engine": self.engine,
            "workload": workload,
            "kind": self.kind,
            "case": dict(self.case),
            "gpu": {"name": self.gpu.name, "memory_bytes": self.gpu.memory_bytes, "count": self.num_gpus},
            "fill": self.fill,
            "largest": self.largest,
            "interval": list(self.interval),
            "stopped_by": self.stopped_by,
            "peaks": peaks,
            "missing_bytes": self.missing_bytes(shown),
            "remedy": None,
            "remarks": self.remarks,
            "modules": [{"name": name, "bytes": size} for name, size in self.largest_modules(shown).items()],
            "curve": peaks,
            "probes": [probe.to_dict() for probe in self.finding.probes],
        }

    def _point(self, size: int) -> dict[str, Any]:
        peak = self.peak(size)
        return {
            "microbatch": size,
            "fits": self.fits(size),
            "breakdown": self.breakdown(size),
            "allocated_bytes": peak.allocated_bytes,
            "reserved_bytes": peak.reserved_bytes,
            "device_bytes": peak.device_bytes,
        }
