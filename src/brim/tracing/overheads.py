"""Memory on a GPU that is no tensor of the workload's and is held from its first use on: cuBLAS's workspaces.

What cuDNN takes for an operation is entered while that is traced (`cudnn.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from brim.devices.catalog import Gpu

# cuBLAS's workspace for each handle and stream: `:4096:2:16:8`, and 32 MiB from compute capability 9 on.
# Source: torch's aten/src/ATen/cuda/CublasHandlePool.cpp.
CUBLAS_BYTES = 8_519_680
CUBLAS_HOPPER_BYTES = 32 * 2**20
_HOPPER = (9, 0)


def workspaces(starts: Sequence[int], gpu: Gpu) -> dict[int, int]:
    """Return the workspaces of cuBLAS, by the moments at which a thread first needs its own."""
    size = CUBLAS_HOPPER_BYTES if gpu.capability >= _HOPPER and not gpu.is_amd else CUBLAS_BYTES
    return dict.fromkeys(starts, size)
