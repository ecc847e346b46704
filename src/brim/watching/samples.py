"""What devices hold at one moment, asked of the driver and the kernel."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import PurePath
from textwrap import shorten
from typing import Any

import psutil

from brim.devices.nvml import choose_visible

# Processes that are named for each device.
NUM_PROCESSES = 5
# As many letters of a process's command are kept.
_LONGEST_COMMAND = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSample:
    """A process and what it holds of a device; None where the driver does not say.

    Attributes:
        command: What it runs, in one line; empty where the kernel does not say.
    """

    pid: int
    name: str
    used_bytes: int | None
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One device at one moment.

    Attributes:
        name: `cpu` or `cuda:N`.
        title: What the hardware calls itself.
        utilization: The share of the time in which it worked, since the last sample.
        watts: What it draws.
        processes: Those that hold most, most first.
        is_gone: Whether it no longer answers; its memory is 0 then.
    """

    name: str
    title: str
    used_bytes: int
    total_bytes: int
    utilization: float | None = None
    watts: float | None = None
    most_watts: float | None = None
    processes: tuple[ProcessSample, ...] = ()
    is_gone: bool = False

    @property
    def fill(self) -> float:
        """The share of the memory that is held."""
        return self.used_bytes / self.total_bytes if self.total_bytes else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the sample as plain data."""
        return asdict(self)


class CpuSampler:
    """The host: its memory, its cores, its largest processes."""

    def __init__(self) -> None:
        psutil.cpu_percent()  # the first call only starts the count

    def sample(self) -> list[DeviceSample]:
        """Return the host as one device."""
        memory = psutil.virtual_memory()
        return [
            DeviceSample(
                name="cpu",
                title=f"{psutil.cpu_count() or 1} cores",
                used_bytes=memory.total - memory.available,
                total_bytes=memory.total,
                utilization=psutil.cpu_percent() / 100,
                processes=_largest_processes(),
            )
        ]

    def close(self) -> None:
        """Do nothing: the kernel needs no goodbye."""


class GpuSampler:
    """The NVIDIA GPUs that torch would see; one that is lost stays in its place.

    Args:
        nvml: The module `pynvml`, or one that behaves like it.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        chosen = choose_visible(uuids, os.environ.get("CUDA_VISIBLE_DEVICES"))
        self._handles = [handles[index] for index in chosen]
        self._titles = [_text(nvml.nvmlDeviceGetName(handle)) for handle in self._handles]

    def sample(self) -> list[DeviceSample]:
        """Return every GPU in torch's order."""
        return [self._sample(index) for index in range(len(self._handles))]

    def close(self) -> None:
        """Let go of the driver."""
        self._nvml.nvmlShutdown()

    def _sample(self, index: int) -> DeviceSample:
        nvml, handle, name, title = self._nvml, self._handles[index], f"cuda:{index}", self._titles[index]
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError:
            return DeviceSample(name=name, title=title, used_bytes=0, total_bytes=0, is_gone=True)
        utilization = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        power = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        most_power = self._ask(nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
        running = self._ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
        processes = [
            ProcessSample(
                pid=each.pid,
                name=_process_name(each.pid),
                used_bytes=each.usedGpuMemory,
                command=_process_command(each.pid),
            )
            for each in running
        ]
        return DeviceSample(
            name=name,
            title=title,
            used_bytes=int(memory.used),
            total_bytes=int(memory.total),
            utilization=None if utilization is None else utilization.gpu / 100,
            watts=None if power is None else power / 1000,
            most_watts=None if most_power is None else most_power / 1000,
            processes=tuple(sorted(processes, key=lambda each: -(each.used_bytes or 0))),
        )

    def _ask(self, question: Any, handle: Any) -> Any:
        """Return the driver's answer; None where the card has none, as consumer cards have for some questions."""
        try:
            return question(handle)
        except self._nvml.NVMLError:
            return None


def open_samplers() -> list[CpuSampler | GpuSampler]:
    """Return a sampler for the GPUs, where there are some, and one for the host."""
    import pynvml

    samplers: list[CpuSampler | GpuSampler] = [CpuSampler()]
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return samplers
    return [GpuSampler(pynvml), *samplers]


def _largest_processes() -> tuple[ProcessSample, ...]:
    found = []
    for process in psutil.process_iter(["pid", "name", "memory_info"]):
        held = process.info["memory_info"]
        if held is not None and held.rss:
            found.append(ProcessSample(pid=process.pid, name=process.info["name"] or "", used_bytes=held.rss))
    largest = sorted(found, key=lambda each: -(each.used_bytes or 0))[:NUM_PROCESSES]
    # Asked for those alone that are shown: it is a file of the kernel's more for each.
    return tuple(replace(each, command=_process_command(each.pid)) for each in largest)


def _process_name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return ""


def _process_command(pid: int) -> str:
    try:
        return short_command(psutil.Process(pid).cmdline())
    except psutil.Error:
        return ""


def short_command(words: Sequence[str]) -> str:
    """Write a command so that its script is seen early: without the folders of the program and of the script.

    >>> short_command(["/usr/bin/python3", "/home/me/project/train.py", "--lr", "1e-3"])
    'python3 train.py --lr 1e-3'
    """
    named = [PurePath(word).name if index == 0 or word.endswith(".py") else word for index, word in enumerate(words)]
    # A script in an argument has several lines, and some write their status with blanks behind it.
    return shorten(" ".join(named), _LONGEST_COMMAND, placeholder=" …")


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
