"""What a phantom says of itself: a GPU of the catalog, as torch asks for it."""

from __future__ import annotations

from dataclasses import dataclass

from brim.devices.catalog import Gpu
from brim.devices.context import context_bytes
from brim.errors import InputError

_KIB = 1024
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Generation:
    """What GPUs of one compute capability have in common.

    Attributes:
        threads_per_sm: Threads that a multiprocessor holds at once; `blocks_per_sm` and `shared_bytes_per_sm` likewise.
            Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
        l2_bytes: Of its best known chip, by NVIDIA's architecture papers; it decides nothing about memory.
    """

    threads_per_sm: int
    blocks_per_sm: int
    shared_bytes_per_sm: int
    l2_bytes: int


_GENERATIONS = {
    (6, 0): _Generation(threads_per_sm=2048, blocks_per_sm=32, shared_bytes_per_sm=64 * _KIB, l2_bytes=4 * _MIB),
    (6, 1): _Generation(threads_per_sm=2048, blocks_per_sm=32, shared_bytes_per_sm=96 * _KIB, l2_bytes=3 * _MIB),
    (7, 0): _Generation(threads_per_sm=2048, blocks_per_sm=32, shared_bytes_per_sm=96 * _KIB, l2_bytes=6 * _MIB),
    (7, 5): _Generation(threads_per_sm=1024, blocks_per_sm=16, shared_bytes_per_sm=64 * _KIB, l2_bytes=6 * _MIB),
    (8, 0): _Generation(threads_per_sm=2048, blocks_per_sm=32, shared_bytes_per_sm=164 * _KIB, l2_bytes=40 * _MIB),
    (8, 6): _Generation(threads_per_sm=1536, blocks_per_sm=16, shared_bytes_per_sm=100 * _KIB, l2_bytes=6 * _MIB),
    (8, 9): _Generation(threads_per_sm=1536, blocks_per_sm=24, shared_bytes_per_sm=100 * _KIB, l2_bytes=72 * _MIB),
    (9, 0): _Generation(threads_per_sm=2048, blocks_per_sm=32, shared_bytes_per_sm=228 * _KIB, l2_bytes=50 * _MIB),
    (10, 0): _Generation(threads_per_sm=2048, blocks_per_sm=32, shared_bytes_per_sm=228 * _KIB, l2_bytes=126 * _MIB),
    (12, 0): _Generation(threads_per_sm=1536, blocks_per_sm=24, shared_bytes_per_sm=100 * _KIB, l2_bytes=96 * _MIB),
}
# A GPU that is only described by its memory: that of an A100, as the capability that a `Gpu` has then.
_TYPICAL_SMS = 108
# Architectures that torch's wheels have kernels for. A GPU takes the newest of its own major that is not above it.
_BINARIES = (50, 60, 61, 70, 75, 80, 86, 90, 100, 103, 120, 121)
# No kernel runs, so no time follows from these.
_CLOCK_KHZ, _MEMORY_CLOCK_KHZ, _MEMORY_BUS_BITS = 1_700_000, 9_500_000, 384


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One phantom.

    Attributes:
        title: What `torch.cuda.get_device_name` says.
        memory_bytes: What it has in all.
        context_bytes: What the driver takes of it for each process.
        binary: The architecture of the kernels that would be loaded, e.g. 86.
    """

    title: str
    memory_bytes: int
    context_bytes: int
    capability: tuple[int, int]
    num_sms: int
    threads_per_sm: int
    blocks_per_sm: int
    shared_bytes_per_sm: int
    l2_bytes: int
    binary: int
    clock_khz: int = _CLOCK_KHZ
    memory_clock_khz: int = _MEMORY_CLOCK_KHZ
    memory_bus_bits: int = _MEMORY_BUS_BITS


def card_of(gpu: Gpu, *, cuda: tuple[int, int], context: int | None = None) -> Card:
    """Return the phantom of a GPU under a version of CUDA.

    Args:
        gpu: Of the catalog, or described by its memory.
        cuda: Decides with the generation what a context takes.
        context: What a context takes, in bytes, where that was measured.

    Raises:
        InputError: It is no NVIDIA GPU.
    """
    if gpu.is_amd:
        raise InputError(f"{gpu.name} runs ROCm, and phantoms are CUDA GPUs. Use `brim predict --engine trace`.")
    known = max((each for each in _GENERATIONS if each <= gpu.capability), default=min(_GENERATIONS))
    generation = _GENERATIONS[known]
    major, minor = gpu.capability
    own = [each for each in _BINARIES if each // 10 == major and each <= major * 10 + minor]
    return Card(
        title=f"NVIDIA {gpu.title}" if gpu.title else f"phantom of {gpu.name}",
        memory_bytes=gpu.memory_bytes,
        context_bytes=context_bytes(gpu, cuda) if context is None else context,
        capability=gpu.capability,
        num_sms=gpu.num_multiprocessors or _TYPICAL_SMS,
        threads_per_sm=generation.threads_per_sm,
        blocks_per_sm=generation.blocks_per_sm,
        shared_bytes_per_sm=generation.shared_bytes_per_sm,
        l2_bytes=generation.l2_bytes,
        binary=max(own, default=major * 10 + minor),
    )
