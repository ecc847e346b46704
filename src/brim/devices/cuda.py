"""A CUDA device's memory from inside the process that uses it.

Kept thin on purpose: what it promises is in the contract tests of `tests/unit/devices`, which run under the marker
`gpu` on phantoms and on real GPUs.
"""

from __future__ import annotations

import torch

from brim.devices import nvml
from brim.devices.catalog import Gpu
from brim.devices.context import context_bytes
from brim.devices.meter import check_room


class CudaMeter:
    """Caps torch's caching allocator and reads its peaks."""

    def __init__(self, device_name: str) -> None:
        self.device_name = device_name
        self._device = torch.device(device_name)
        before = None if torch.cuda.is_initialized() else self._driver()
        torch.ones(1, device=self._device)
        torch.cuda.synchronize(self._device)
        _, self._total_bytes = torch.cuda.mem_get_info(self._device)
        # What the driver holds for this process beside the allocator: the context and the kernels it loaded.
        self.context_bytes = self._measure_context(before)
        self.baseline_bytes = self.context_bytes
        self._limit_bytes: int | None = None
        self._has_settled = False
        self._own_share = torch.cuda.get_per_process_memory_fraction(self._device) if _TELLS_SHARE else 1.0
        self._retries_before = 0
        self.reset()

    def limit(self, limit_bytes: int) -> None:
        """Make every allocation fail that would bring the process above `limit_bytes` of the device."""
        self._limit_bytes = limit_bytes
        self._has_settled = False
        check_room(self.context_bytes, limit_bytes)
        self._cap(limit_bytes)

    def lift(self) -> None:
        """Undo `limit`."""
        torch.cuda.set_per_process_memory_fraction(self._own_share, self._device)

    def reset(self) -> None:
        """Start measuring the peak anew."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)
        self._retries_before = self._retries()

    def peaks(self) -> dict[str, int]:
        """Return the peaks since `reset`; `peak_bytes` is what the driver would show for this process."""
        reserved = torch.cuda.max_memory_reserved(self._device)
        return {
            "peak_bytes": reserved + self.context_bytes,
            "allocated_bytes": torch.cuda.max_memory_allocated(self._device),
            "reserved_bytes": reserved,
            "device_bytes": reserved + self.context_bytes,
            "num_retries": self._retries() - self._retries_before,
        }

    def synchronize(self) -> None:
        """Wait until all work on the device is done; the first time under a limit, count what the work loaded."""
        torch.cuda.synchronize(self._device)
        if self._limit_bytes is not None and not self._has_settled:
            self._has_settled = True
            self.context_bytes = max(self.context_bytes, self._measure_context(None))
            self._cap(self._limit_bytes)

    @property
    def is_nearly_full(self) -> bool:
        """Whether the peak came so close to the limit that a vague failure is one of memory."""
        return self._limit_bytes is not None and self.peaks()["peak_bytes"] >= 0.8 * self._limit_bytes

    def _cap(self, limit_bytes: int) -> None:
        share = max(0.0, limit_bytes - self.context_bytes) / self._total_bytes
        torch.cuda.set_per_process_memory_fraction(min(self._own_share, share), self._device)

    def _measure_context(self, before: nvml.Gpu | None) -> int:
        """Return what the driver holds for this process beside torch's allocator.

        Args:
            before: The device before this process used it, where that is known.
        """
        now, reserved = self._driver(), torch.cuda.memory_reserved(self._device)
        if now is not None and now.held_bytes is not None:
            return max(0, now.held_bytes - reserved)
        if now is not None and before is not None:
            return max(0, before.free_bytes - now.free_bytes - reserved)
        # The driver does not know this process, and it was not asked before: a container, in a job that was under way.
        capability = torch.cuda.get_device_capability(self._device)
        version = tuple(int(part) for part in (torch.version.cuda or "12.0").split("."))
        return context_bytes(Gpu(name="cuda", memory_bytes=self._total_bytes, capability=capability), version)

    def _driver(self) -> nvml.Gpu | None:
        gpus, index = nvml.visible_gpus(), self._device.index or 0
        return gpus[index] if index < len(gpus) else None

    def _retries(self) -> int:
        return int(torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0))


# torch 2.4 can set it alone.
_TELLS_SHARE = hasattr(torch.cuda, "get_per_process_memory_fraction")
