"""What the driver keeps on a GPU for a process beside its tensors: the context, with the kernels that it loaded."""

from __future__ import annotations

from brim.devices.catalog import Gpu

_MIB = 2**20
# What a process holds before its first tensor, with kernels loaded when they are first used (CUDA 11.7 and newer):
# 300 to 500 MiB, more on newer and larger chips. Source: nvidia-smi of idle torch processes in public reports
# (256 MiB on an RTX 3090, 426 MiB on an RTX 6000 Ada); the other generations are interpolated, not measured.
CONTEXT_BYTES = {6: 300 * _MIB, 7: 330 * _MIB, 8: 400 * _MIB, 9: 500 * _MIB, 10: 550 * _MIB, 12: 450 * _MIB}
# Before that, all of torch's kernels are loaded at once. Source: nvidia-smi of idle torch processes in public reports:
# 721 MiB on a GTX 1080 and 1,687 MiB on an RTX 3090 (pytorch issue 55277), 1,343 MiB on a V100 (transformers' guide to
# training on one GPU). Reports differ: two others say 1,001 and 1,488 MiB for the RTX 3090.
EAGER_CONTEXT_BYTES = {6: 721 * _MIB, 7: 1343 * _MIB, 8: 1687 * _MIB}
_LAZY_CUDA = (11, 7)
# On ROCm; an assumption.
ROCM_CONTEXT_BYTES = 350 * _MIB
# By how much that may be off, in either direction.
CONTEXT_DOUBT_BYTES = 150 * _MIB


def context_bytes(gpu: Gpu, cuda: tuple[int, ...]) -> int:
    """Return what the driver keeps for a process on this GPU, with this version of CUDA."""
    if gpu.is_amd:
        return ROCM_CONTEXT_BYTES
    known_bytes = CONTEXT_BYTES if cuda >= _LAZY_CUDA else EAGER_CONTEXT_BYTES
    major = gpu.capability[0]
    return known_bytes[max((known for known in known_bytes if known <= major), default=min(known_bytes))]
