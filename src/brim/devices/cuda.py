"""A CUDA device's memory from inside the process that uses it.

Kept thin on purpose: what it promises is in the contract tests of `tests/unit/devices`, which run on a real GPU
under the marker `gpu`.
"""

from __future__ import annotations

import torch

from brim.devices.meter import check_room


class CudaMeter:
    """Caps torch's caching allocator and reads its peaks."""

    def __init__(self, device_name: str) -> None:
        self.device_name = device_name
        self._device = torch.device(device_name)
        free_before, self._total_bytes = torch.cuda.mem_get_info(self._device)
        torch.ones(1, device=self._device)
        torch.cuda.synchronize(self._device)
        free_after, _ = torch.cuda.mem_get_info(self._device)
        reserved = torch.cuda.memory_reserved(self._device)
        # What the driver holds for this process beside the allocator: the context and the kernels it loaded.
        self.context_bytes = max(0, free_before - free_after - reserved)
        self.baseline_bytes = self.context_bytes
        self._limit_bytes: int | None = None
        self._retries_before = 0
        self.reset()

    def limit(self, limit_bytes: int) -> None:
        """Make every allocation fail that would bring the process above `limit_bytes` of the device."""
        self._limit_bytes = limit_bytes
        check_room(self.context_bytes, limit_bytes)
        share = max(0.0, limit_bytes - self.context_bytes) / self._total_bytes
        torch.cuda.set_per_process_memory_fraction(min(1.0, share), self._device)

    def lift(self) -> None:
        """Undo `limit`."""
        torch.cuda.set_per_process_memory_fraction(1.0, self._device)

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
        """Wait until all work on the device is done."""
        torch.cuda.synchronize(self._device)

    @property
    def is_nearly_full(self) -> bool:
        """Whether the peak came so close to the limit that a vague failure is one of memory."""
        return self._limit_bytes is not None and self.peaks()["peak_bytes"] >= 0.8 * self._limit_bytes

    def _retries(self) -> int:
        return int(torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0))
