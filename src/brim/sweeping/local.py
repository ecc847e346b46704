"""The engine on this machine: as many trials at once as cores, memory and GPUs allow."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import psutil

from brim.devices.cpu import available_bytes
from brim.devices.nvml import visible_gpus
from brim.errors import DeviceError, InputError
from brim.sweeping.hosting import TrialHost
from brim.sweeping.outcome import TrialOutcome
from brim.sweeping.resources import Resources, num_at_once
from brim.sweeping.trial import TrialRequest, TrialRun
from brim.units import format_bytes


class LocalEngine:
    """Runs trials below one host process.

    Args:
        resources: What each trial needs.
        jobs: The most trials at once; None for as many as the machine allows.
        held_fds: Descriptors that stay open until the last trial has ended.
    """

    def __init__(self, resources: Resources, *, jobs: int | None = None, held_fds: tuple[int, ...] = ()) -> None:
        self._gpus = _gpu_names()
        self._resources = _check(resources, num_gpus=len(self._gpus))
        self._jobs = jobs
        self._num_cores = _num_cores()
        self._free_bytes = available_bytes()
        self._peak_bytes: int | None = None
        self._running: dict[str, TrialRun] = {}
        self._taken: dict[str, list[str]] = {}
        self._host = TrialHost(held_fds=held_fds)

    @property
    def num_running(self) -> int:
        """How many trials were started and have not been returned by `wait`."""
        return len(self._running)

    @property
    def num_slots(self) -> int:
        """How many trials may run at once, by what is known of them now."""
        return num_at_once(
            self._resources,
            num_cores=self._num_cores,
            num_gpus=len(self._gpus),
            free_bytes=self._free_bytes,
            peak_bytes=self._peak_bytes,
            jobs=self._jobs,
        )

    @property
    def has_room(self) -> bool:
        """Whether another trial may be started now."""
        return self.num_running < self.num_slots

    def start(self, request: TrialRequest, directory: Path) -> None:
        """Start a trial in its directory and return at once."""
        name = request.trial_id
        free = [gpu for gpu in self._gpus if not any(gpu in taken for taken in self._taken.values())]
        self._taken[name] = free[: int(self._resources.gpus or 0)]
        run = TrialRun(
            request,
            directory=directory,
            host=self._host,
            environment=self._environment(self._taken[name]),
            where=" ".join([socket.gethostname(), *(f"GPU {gpu}" for gpu in self._taken[name])]),
        )
        self._running[name] = run
        run.start()

    def wait(self, timeout_seconds: float) -> list[tuple[str, TrialOutcome]]:
        """Return the trials that ended, by id, after at most so long."""
        outcomes = []
        for name, ended in self._host.ended(timeout_seconds):
            outcome = self._running[name].proceed(ended)
            if outcome is not None:
                del self._running[name], self._taken[name]
                self._peak_bytes = max(self._peak_bytes or 0, outcome.peak_bytes or 0)
                outcomes.append((name, outcome))
        return outcomes

    def stop(self) -> None:
        """Ask every trial to end; `wait` then returns them, mostly as interrupted."""
        for name in self._running:
            self._host.end(name)

    def close(self) -> None:
        """End what still runs."""
        self._host.close()

    def _environment(self, gpus: list[str]) -> dict[str, str]:
        environment = {}
        if self._gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        # Trials that share a machine would otherwise each start a thread for every core.
        if self.num_slots > 1 and "OMP_NUM_THREADS" not in os.environ:
            environment["OMP_NUM_THREADS"] = str(max(1, int(self._resources.cpus)))
        return environment


def _check(resources: Resources, *, num_gpus: int) -> Resources:
    """Return the resources with the default number of GPUs; refuse what this machine does not have."""
    wanted = resources.gpus if resources.gpus is not None else min(1, num_gpus)
    if wanted != int(wanted) or resources.cpus != int(resources.cpus):
        raise InputError(
            f"A trial asks for {resources}: the local engine hands out whole CPUs and GPUs. Use --engine ray."
        )
    if wanted > num_gpus:
        seen = f"{num_gpus} GPU{'s' if num_gpus != 1 else ''}"
        raise DeviceError(
            f"A trial asks for {wanted:g} GPU{'s' if wanted != 1 else ''}, but this machine has {seen}. "
            "Ask for fewer, or use --engine ray with a cluster that has them."
        )
    if resources.cpus > _num_cores():
        raise DeviceError(
            f"A trial asks for {resources.cpus:g} CPUs, but this machine has {_num_cores()}. Ask for fewer."
        )
    total_bytes = psutil.virtual_memory().total
    if resources.memory_bytes is not None and resources.memory_bytes > total_bytes:
        raise DeviceError(
            f"A trial asks for {format_bytes(resources.memory_bytes)} of memory, but this machine has "
            f"{format_bytes(total_bytes)}. Ask for less."
        )
    return Resources(cpus=resources.cpus, gpus=wanted, memory_bytes=resources.memory_bytes)


def _gpu_names() -> list[str]:
    """Return the GPUs as CUDA_VISIBLE_DEVICES names them."""
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    num_gpus = len(visible_gpus())
    return [part.strip() for part in setting.split(",")][:num_gpus] if setting else [str(n) for n in range(num_gpus)]


def _num_cores() -> int:
    """Return the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return psutil.cpu_count() or 1
