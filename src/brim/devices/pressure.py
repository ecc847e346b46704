"""How hard a device's memory is pressed, from inside a run that no meter watches."""

from __future__ import annotations

import sys

from brim.devices import cpu

# From this share on, a vague failure is one of memory. Source: the same share as in a probe.
_NEARLY_FULL = 0.8


def is_nearly_full(device_name: str) -> bool:
    """Return whether so little memory is left that a vague failure is one of memory."""
    if device_name.startswith("cuda"):
        import torch

        free_bytes, total_bytes = torch.cuda.mem_get_info(device_name)
        return total_bytes - free_bytes >= _NEARLY_FULL * total_bytes
    if sys.platform != "linux":
        return False
    import resource

    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return limit_bytes != resource.RLIM_INFINITY and cpu.data_bytes() >= _NEARLY_FULL * limit_bytes


def num_retries(device_name: str) -> int:
    """Return how often torch had to give cached memory back before an allocation worked; 0 where none is cached."""
    if not device_name.startswith("cuda"):
        return 0
    import torch

    return int(torch.cuda.memory_stats(device_name).get("num_alloc_retries", 0))
