"""A job from its start to its end: looked at often, shown now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from brim.units import format_bytes, format_seconds
from brim.watching.job import Job, Observed
from brim.watching.samples import CpuSampler, DeviceSample, GpuSampler, open_samplers

# How often a job is looked at, whatever is shown: a peak that is shorter may be missed.
LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSample:
    """A job at one moment.

    Attributes:
        seconds: Since it began.
        host_bytes: What it holds of the host's memory.
        gpu_bytes: The most that it holds of one GPU; None where it holds nothing of any.
        step_seconds: The median time of its steps so far; None where it told of none.
    """

    seconds: float
    host_bytes: int
    gpu_bytes: int | None
    num_steps: int
    step_seconds: float | None

    def describe(self) -> str:
        """Return the sample as a line."""
        gpu = f" and {format_bytes(self.gpu_bytes)} of a GPU" if self.gpu_bytes else ""
        steps = f", step {self.num_steps:,}" if self.num_steps else ""
        speed = f", {format_seconds(self.step_seconds)} a step" if self.step_seconds else ""
        held = f"the job holds {format_bytes(self.host_bytes)} of the host{gpu}"
        return f"{format_seconds(self.seconds)}: {held}{steps}{speed}"

    def to_dict(self) -> dict[str, Any]:
        """Return the sample as plain data."""
        return asdict(self)


Show = Callable[[Sequence[DeviceSample], JobSample | None], None]


def follow(job: Job, show: Show, interval_seconds: float) -> Observed:
    """Look at a job until it has ended; `show` is given the devices and the job as they are."""
    samplers = open_samplers()
    started = next_show = time.monotonic()
    try:
        has_ended = False
        while not has_ended:
            gpus = [device for sampler in samplers if isinstance(sampler, GpuSampler) for device in sampler.sample()]
            host_bytes, gpu_bytes = job.observe(gpus)
            now = time.monotonic()
            if now >= next_show:
                # Asking for every process of the host is too dear to do at every look.
                host = [
                    device for sampler in samplers if isinstance(sampler, CpuSampler) for device in sampler.sample()
                ]
                told = job.told
                sample = JobSample(
                    seconds=now - started,
                    host_bytes=host_bytes,
                    gpu_bytes=gpu_bytes or None,
                    num_steps=told.num_steps,
                    step_seconds=told.step_seconds,
                )
                show([*gpus, *host], sample)
                next_show = now + interval_seconds
            has_ended = job.wait(LOOK_SECONDS)
        return job.ended()
    finally:
        for sampler in samplers:
            sampler.close()
