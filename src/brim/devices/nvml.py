"""The NVIDIA GPUs that torch would see, asked of the driver without importing torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as the driver reports it.

    Attributes:
        held_bytes: What this process holds of it; None where the driver does not say, as for most containers.
    """

    name: str
    total_bytes: int
    free_bytes: int
    held_bytes: int | None = None


def visible_gpus() -> list[Gpu]:
    """Return the GPUs in torch's order; empty where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        uuids = [_text(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        gpus = []
        for index in choose_visible(uuids, os.environ.get("CUDA_VISIBLE_DEVICES")):
            memory = pynvml.nvmlDeviceGetMemoryInfo(handles[index])
            name = _text(pynvml.nvmlDeviceGetName(handles[index]))
            gpus.append(
                Gpu(
                    name=name,
                    total_bytes=int(memory.total),
                    free_bytes=int(memory.free),
                    held_bytes=_held_bytes(pynvml, handles[index]),
                )
            )
        return gpus
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def choose_visible(uuids: list[str], setting: str | None) -> list[int]:
    """Return the indices that a CUDA_VISIBLE_DEVICES setting leaves, in its order, up to the first it cannot name.

    Where it names a GPU twice, CUDA shows none.

    >>> choose_visible(["GPU-aa", "GPU-bb", "GPU-cc"], "2,0"), choose_visible(["GPU-aa", "GPU-bb"], "GPU-b,7,0")
    ([2, 0], [1])
    """
    if setting is None:
        return list(range(len(uuids)))
    chosen: list[int] = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry.isdigit():
            matches = [int(entry)] if int(entry) < len(uuids) else []
        else:
            matches = [index for index, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
        if len(matches) != 1:
            break
        if matches[0] in chosen:
            return []
        chosen.append(matches[0])
    return chosen


def _held_bytes(nvml: Any, handle: Any) -> int | None:
    """Return what this process holds of a GPU; None where the driver names it by another number, or not at all."""
    try:
        running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except nvml.NVMLError:
        return None
    return next((each.usedGpuMemory for each in running if each.pid == os.getpid()), None)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
