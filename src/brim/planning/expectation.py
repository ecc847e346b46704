"""What a plan's job should be seen to use, so that a run can be held against it."""

from __future__ import annotations

from dataclasses import dataclass

from brim.devices.catalog import Gpu
from brim.planning.answer import Answer, TracedJob

# By how much a job may differ from what a trace, a formula or a line says, as a share. An assumption, not yet measured.
DOUBT = 0.1
# The kinds of memory that grow with the microbatch.
_GROWING = ("activations", "inputs", "temporary")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The memory of a device and the range that the peak should lie in.

    Attributes:
        gpu: The GPU that this was worked out for; None where it is what was measured, on whatever device.
    """

    memory_bytes: int
    peak_low_bytes: int
    peak_high_bytes: int
    gpu: str | None = None


def expectation_of(found: Answer) -> Expectation | None:
    """Return what a plan's job should use; None where nothing is known but the microbatch."""
    if found.plan is None:
        return None
    microbatch = found.plan.microbatch
    if found.traced is not None:
        return _around(_traced_peak(found.traced, microbatch), found.traced.gpu)
    if found.sizing is not None:
        return _around(found.sizing.held.peak_bytes(microbatch), found.sizing.gpu)
    if found.measurement is not None and microbatch == found.measurement.chosen.batch:
        chosen, memory_bytes = found.measurement.chosen, found.measurement.memory_bytes
        return Expectation(
            memory_bytes=memory_bytes,
            peak_low_bytes=round(chosen.line_bytes * (1 - DOUBT)),
            peak_high_bytes=min(max(chosen.worst_bytes, round(chosen.line_bytes * (1 + DOUBT))), memory_bytes),
        )
    return None


def _traced_peak(job: TracedJob, microbatch: int) -> int:
    growing = sum(job.breakdown[kind] for kind in _GROWING)
    return job.device_bytes - round(growing * (1 - microbatch / job.microbatch))


def _around(peak_bytes: int, gpu: Gpu) -> Expectation:
    return Expectation(
        memory_bytes=gpu.memory_bytes,
        peak_low_bytes=round(peak_bytes * (1 - DOUBT)),
        peak_high_bytes=min(round(peak_bytes * (1 + DOUBT)), gpu.memory_bytes),
        gpu=gpu.name,
    )
