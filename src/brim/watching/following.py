"""A job from its start to its end: looked at often, shown now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from brim.units import format_bytes, format_seconds
from brim.watching.job import Job, Observed
from brim.watching.samples import CpuSampler, DeviceSample, GpuSampler, open_samplers

# How often a job is looked at, whatever is shown: a peak that is shorter may be missed.
LOOK_SECONDS = 0.1

Show = Callable[[Sequence[DeviceSample], str], None]


def follow(job: Job, show: Show, interval_seconds: float) -> Observed:
    """Look at a job until it has ended; `show` is given the devices and a line on the job."""
    samplers = open_samplers()
    started = next_show = time.monotonic()
    try:
        has_ended = False
        while not has_ended:
            gpus = [device for sampler in samplers if isinstance(sampler, GpuSampler) for device in sampler.sample()]
            held_bytes = job.observe(gpus)
            now = time.monotonic()
            if now >= next_show:
                # Asking for every process of the host is too dear to do at every look.
                host = [
                    device for sampler in samplers if isinstance(sampler, CpuSampler) for device in sampler.sample()
                ]
                show([*gpus, *host], _line(job, held_bytes, now - started))
                next_show = now + interval_seconds
            has_ended = job.wait(LOOK_SECONDS)
        return job.ended()
    finally:
        for sampler in samplers:
            sampler.close()


def _line(job: Job, held_bytes: int, seconds: float) -> str:
    told = job.told
    steps = f", step {told.num_steps:,}" if told.num_steps else ""
    speed = f", {format_seconds(told.step_seconds)} a step" if told.step_seconds else ""
    return f"{format_seconds(seconds)}: the job holds {format_bytes(held_bytes)} of the host{steps}{speed}"
