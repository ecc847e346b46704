"""A device and how much of it may be used; resolved without importing torch."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from brim.devices import cpu, nvml
from brim.errors import DeviceError, InputError
from brim.units import parse_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What the job must fit into.

    Attributes:
        name: `cpu` or `cuda:N`.
        memory_bytes: The memory the job may have in all.
        fill: The share of it that the peak may use.
        model: What the hardware calls itself, where it has a say in the answer.
    """

    name: str
    memory_bytes: int
    fill: float
    model: str = ""

    @property
    def noise(self) -> float:
        """By how much the peaks of equal runs differ, as a share of the limit."""
        return cpu.noise() if self.name == "cpu" else 0.0

    @property
    def has_equal_processes(self) -> bool:
        """Whether processes that were forked from one that only imported things tell no less than new ones."""
        return self.name == "cpu" and cpu.is_mapped()

    @property
    def is_more_than_there_is(self) -> bool:
        """Whether the limit is above what the machine has, so that another one comes first."""
        return self.name == "cpu" and self.limit_bytes > cpu.total_bytes()

    @property
    def limit_bytes(self) -> int:
        """The peak that a microbatch may reach."""
        return int(self.memory_bytes * self.fill)


def check_fill(fill: float) -> None:
    """Refuse what is no share of a device's memory."""
    if not isinstance(fill, (int, float)) or isinstance(fill, bool) or not 0 < fill <= 1:
        raise InputError(f"fill is {fill!r}. Use a share of the memory above 0 and at most 1, e.g. 0.9.")


def resolve(
    name: str, *, memory: str | int | None, fill: float, num_sharing: int = 1, in_process: bool = False
) -> Device:
    """Return the device called `name`; `memory` replaces what is free on it now.

    Args:
        name: `auto`, `cpu` or `cuda:N`.
        memory: What each process may have in all.
        fill: The share of it that a peak may use.
        num_sharing: How many processes share what is free on the CPU.
        in_process: Whether this process is the one that will be measured: what it holds of a GPU is its own to use.
    """
    check_fill(fill)
    if not isinstance(name, str):
        raise InputError(f"The device is {name!r}. Use auto, cpu or cuda:N.")
    memory_bytes = None if memory is None else parse_bytes(memory)
    if name == "auto":
        name = "cuda:0" if nvml.visible_gpus() else "cpu"
    if name == "cpu":
        return Device(name="cpu", memory_bytes=memory_bytes or cpu.available_bytes() // num_sharing, fill=fill)
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if match is None:
        raise InputError(f"There is no device {name!r}. Use auto, cpu or cuda:N.")
    index = int(match[1] or 0)
    gpus = nvml.visible_gpus()
    if index >= len(gpus):
        seen = f"{len(gpus)} CUDA device{'s' if len(gpus) != 1 else ''}"
        raise DeviceError(
            f"There is no cuda:{index}: NVML sees {seen}. Use --device cpu, or check CUDA_VISIBLE_DEVICES."
        )
    gpu = gpus[index]
    return Device(
        name=f"cuda:{index}",
        memory_bytes=min(
            memory_bytes or gpu.free_bytes + (_own_bytes(gpu, index) if in_process else 0), gpu.total_bytes
        ),
        fill=fill,
        model=gpu.name,
    )


def _own_bytes(gpu: nvml.Gpu, index: int) -> int:
    """Return what this process holds of a GPU: as the driver says, or as far as torch's allocator knows."""
    torch = sys.modules.get("torch")
    if gpu.held_bytes is not None or torch is None or not torch.cuda.is_initialized():
        return gpu.held_bytes or 0
    return int(torch.cuda.memory_reserved(index))


def resolve_ranks(
    name: str, *, memory: str | int | None, fill: float, num_ranks: int, in_process: bool = False
) -> tuple[Device, tuple[int, ...]]:
    """Return the fullest device that ranks run on, and the limit of each rank: a CUDA device for every one of them."""
    device = resolve(name, memory=memory, fill=fill, num_sharing=num_ranks, in_process=in_process)
    if num_ranks == 1:
        return device, (device.limit_bytes,)
    if device.name == "cpu":
        return device, (device.limit_bytes,) * num_ranks
    num_gpus = len(nvml.visible_gpus())
    if num_ranks > num_gpus:
        raise DeviceError(
            f"{num_ranks} ranks need {num_ranks} CUDA devices, and NVML sees {num_gpus}. Use at most {num_gpus} ranks, "
            "or --device cpu."
        )
    devices = [resolve(f"cuda:{rank}", memory=memory, fill=fill) for rank in range(num_ranks)]
    return min(devices, key=lambda device: device.limit_bytes), tuple(device.limit_bytes for device in devices)
