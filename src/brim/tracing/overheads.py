"""Memory on a GPU that is no tensor of the workload's and held all along: cuBLAS's workspaces.

What cuDNN takes for an operation is entered while that is traced (`cudnn.py`).
"""

from __future__ import annotations

from brim.devices.catalog import Gpu

# cuBLAS's workspace for each handle and stream: `:4096:2:16:8`, and 32 MiB from compute capability 9 on.
# Source: torch's aten/src/ATen/cuda/CublasHandlePool.cpp.
CUBLAS_BYTES = 8_519_680
CUBLAS_HOPPER_BYTES = 32 * 2**20
_HOPPER = (9, 0)


def cublas_bytes(gpu: Gpu, *, trains: bool) -> tuple[int, ...]:
    """Return the workspaces of cuBLAS: autograd runs the backward pass in a thread, and with a handle, of its own."""
    size = CUBLAS_HOPPER_BYTES if gpu.capability >= _HOPPER and not gpu.is_amd else CUBLAS_BYTES
    return (size, size) if trains else (size,)
