"""The CPU's memory as the kernel counts it: how much is free, a limit on this process, its peak."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from brim.devices.meter import check_room
from brim.errors import DeviceError
from brim.forks import in_forks

# What is free changes all the time; rounding it down keeps the answer and its place in the history the same.
_AVAILABLE_STEP_BYTES = 256 * 2**20
# By how much the peaks of equal runs may differ, as a share of the peak: glibc's heap depends on the timing of threads
# and on the address layout. Source: equal sizes that ran twice in brim's searches over the benchmarks' workloads.
HEAP_NOISE = 0.025
# The same where every tensor that matters has a mapping of its own. Source: the same searches with a fixed threshold.
MAPPED_NOISE = 0.002
# Where glibc reads how large a request must be for that. Its own threshold moves up to 32 MiB.
_THRESHOLD_VARIABLE = "MALLOC_MMAP_THRESHOLD_"
# Tensors that are smaller than this, in bytes, hardly show in the memory of a process.
_SMALL_TENSOR_BYTES = 2**20
_CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


def available_bytes() -> int:
    """Return the memory that a new process could have now, inside the container's limit."""
    available = int(_psutil().virtual_memory().available)
    for limit_file, usage_file in _CGROUP_FILES:
        try:
            limit, usage = Path(limit_file).read_text().strip(), int(Path(usage_file).read_text())
        except (OSError, ValueError):
            continue
        if limit.isdigit():
            available = min(available, max(0, int(limit) - usage))
    return max(available // _AVAILABLE_STEP_BYTES * _AVAILABLE_STEP_BYTES, min(available, _AVAILABLE_STEP_BYTES))


def total_bytes() -> int:
    """Return the memory that the machine has."""
    return int(_psutil().virtual_memory().total)


def is_mapped() -> bool:
    """Return whether glibc is told to give every tensor that matters a mapping of its own, outside of its heap."""
    threshold = os.environ.get(_THRESHOLD_VARIABLE, "")
    return threshold.isdigit() and int(threshold) <= _SMALL_TENSOR_BYTES


def noise() -> float:
    """Return by how much the peaks of equal processes differ here, as a share of the peak."""
    return MAPPED_NOISE if is_mapped() else HEAP_NOISE


def num_oom_kills() -> int | None:
    """Return how many processes the kernel has killed for lack of memory, here or in this container."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control", "/proc/vmstat"):
        try:
            lines = Path(path).read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


class CpuMeter:
    """Limits and measures the private writable memory of this process (`VmData`, what RLIMIT_DATA counts)."""

    device_name = "cpu"

    def __init__(self) -> None:
        self._limit_bytes: int | None = None
        self._previous_limit: tuple[int, int] | None = None
        _start_worker_threads()
        self.baseline_bytes = data_bytes() if sys.platform == "linux" else _psutil().Process().memory_info().rss
        self.reset()

    def limit(self, limit_bytes: int) -> None:
        """Make every allocation above `limit_bytes` fail from now on, or raise where the process is above it."""
        if sys.platform != "linux":
            raise DeviceError("A limit on CPU memory needs Linux (RLIMIT_DATA). Use a CUDA device here.")
        import resource

        self._previous_limit = resource.getrlimit(resource.RLIMIT_DATA)
        # Only the soft limit: it can be lifted again to report a failure, or to give a notebook its memory back.
        soft, hard = self._previous_limit
        # A process may have been given less from elsewhere.
        self._limit_bytes = limit_bytes if soft == resource.RLIM_INFINITY else min(limit_bytes, soft)
        check_room(data_bytes(), self._limit_bytes)
        resource.setrlimit(resource.RLIMIT_DATA, (self._limit_bytes, hard))

    def lift(self) -> None:
        """Undo `limit`."""
        if sys.platform == "linux" and self._previous_limit is not None:
            import resource

            resource.setrlimit(resource.RLIMIT_DATA, self._previous_limit)
            self._previous_limit = None

    def reset(self) -> None:
        """Start measuring the peak anew."""
        if sys.platform != "linux":
            return
        with contextlib.suppress(OSError):
            _CLEAR_REFS.write_text("5")  # sets VmHWM back to VmRSS
        self._peak_before = _status()["VmPeak"]

    def peaks(self) -> dict[str, int]:
        """Return the peak since `reset` as `peak_bytes`."""
        if sys.platform != "linux":
            return {"peak_bytes": _psutil().Process().memory_info().rss}
        now = _status()
        if now["VmPeak"] > self._peak_before:
            return {"peak_bytes": peak_data_bytes()}
        return {"peak_bytes": now["VmData"] + max(0, now["VmHWM"] - now["VmRSS"])}

    def synchronize(self) -> None:
        """Wait until all work is done; the CPU is always done."""

    @property
    def is_nearly_full(self) -> bool:
        """Whether the peak came so close to the limit that a vague failure is one of memory."""
        return self._limit_bytes is not None and self.peaks()["peak_bytes"] >= 0.8 * self._limit_bytes


def baseline_in_fork() -> int:
    """Return what a process forked from this one holds before it builds a workload."""
    return int(in_forks([lambda: CpuMeter().baseline_bytes])[0])


def data_bytes() -> int:
    """Return the private writable memory of this process."""
    return _status()["VmData"]


def peak_data_bytes() -> int:
    """Return the most private writable memory that this process ever had.

    The kernel keeps no high-water mark of VmData, but of VmSize; what is not data hardly changes in a run.
    """
    now = _status()
    return max(now["VmPeak"] - (now["VmSize"] - now["VmData"]), now["VmData"])


def peak_resident_bytes() -> int:
    """Return the most memory that this process ever had, as the kernel counts."""
    if sys.platform != "linux":
        return _psutil().Process().memory_info().rss
    return _status()["VmHWM"]


def _start_worker_threads() -> None:
    """Start torch's thread pool now: started under a limit, it could not get its stacks and would end the process."""
    import torch

    torch.ones(2**18).sum()


def _status() -> dict[str, int]:
    """Return the Vm lines of /proc/self/status in bytes."""
    fields = (line.split(":", 1) for line in _STATUS.read_text().splitlines() if line.startswith("Vm"))
    return {name: int(value.split()[0]) * 1024 for name, value in fields}


def _psutil() -> Any:
    import psutil  # here, because programs that brim only looks at import this file too

    return psutil
