"""A phantom GPU's memory from inside the process that uses it: nothing is allocated or reset for it."""

from __future__ import annotations

import torch


class PhantomMeter:
    """Caps torch's caching allocator where that is asked for, and reads its peaks."""

    def __init__(self, device_name: str) -> None:
        self.device_name = device_name.replace("phantom", "cuda")
        self.baseline_bytes = 0
        self._device = torch.device(self.device_name)
        _, self._total_bytes = torch.cuda.mem_get_info(self._device)
        self._limit_bytes = self._total_bytes

    def limit(self, limit_bytes: int) -> None:
        """Make torch's allocator refuse what would bring it above `limit_bytes`; the card's memory ends by itself."""
        self._limit_bytes = min(limit_bytes, self._total_bytes)
        if self._limit_bytes < self._total_bytes:
            torch.cuda.set_per_process_memory_fraction(max(0, limit_bytes) / self._total_bytes, self._device)

    def lift(self) -> None:
        """Undo `limit`."""
        if self._limit_bytes < self._total_bytes:
            torch.cuda.set_per_process_memory_fraction(1.0, self._device)

    def reset(self) -> None:
        """Do nothing: a process has one job."""

    def peaks(self) -> dict[str, int]:
        """Return the peaks of this process, as torch's allocator counts; the account of the job knows the device's."""
        reserved = torch.cuda.max_memory_reserved(self._device)
        return {
            "peak_bytes": reserved,
            "allocated_bytes": torch.cuda.max_memory_allocated(self._device),
            "reserved_bytes": reserved,
            "device_bytes": reserved,
            "num_retries": int(torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0)),
        }

    def synchronize(self) -> None:
        """Do nothing: a phantom is never busy."""

    @property
    def is_nearly_full(self) -> bool:
        """Whether the peak came so close to the limit that a vague failure is one of memory."""
        return self.peaks()["reserved_bytes"] >= 0.8 * self._limit_bytes
