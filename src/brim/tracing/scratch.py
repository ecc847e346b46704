"""What CUDA kernels take for a moment beside their results, where that follows from counts that grow with the batch.

No torch is needed here: the counts come from a trace, and the sizes follow for any microbatch and any GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from brim.devices.catalog import Gpu

# The least that CUDA's allocator gives, in bytes.
LEAST_BYTES = 512
FLOAT32_BYTES = 4
# Threads that a multiprocessor holds at once, by compute capability; all others hold 2,048.
# Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
_THREADS = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
_MOST_THREADS = 2048
# Of a GPU of which only the memory is known: an A100's, as its capability.
_TYPICAL_MULTIPROCESSORS = 108
# Threads of a warp, and of a block of a reduction at most; how many values each of these adds up.
# Source, as for `reduction_bytes`: torch's aten/src/ATen/native/cuda/Reduce.cuh.
_WARP = 32
_BLOCK = 512
_FEWEST_VALUES, _MOST_VALUES = 16, 256
# Up to how many indices one kernel does all, and how many a thread of the other takes.
# Source, as for `embedding_bytes`: torch's aten/src/ATen/native/cuda/Embedding.cu and EmbeddingBackwardKernel.cu.
_FEW_INDICES = 3072
_INDICES_PER_THREAD = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """What decides how kernels divide their work.

    Attributes:
        count: Multiprocessors.
        threads: That each of them holds at once.
    """

    count: int
    threads: int


TYPICAL = Processors(count=_TYPICAL_MULTIPROCESSORS, threads=_MOST_THREADS)


def processors_of(gpu: Gpu) -> Processors:
    """Return the processors of a GPU."""
    count = gpu.num_multiprocessors or _TYPICAL_MULTIPROCESSORS
    return Processors(count=count, threads=_THREADS.get(gpu.capability, _MOST_THREADS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """Memory that a kernel takes for a moment.

    Attributes:
        formula: Its bytes, from counts and processors.
        counts: Of what the kernel works on; each grows evenly with the batch, or not at all.
    """

    formula: Callable[[tuple[int, ...], Processors], int]
    counts: tuple[int, ...]

    def bytes_on(self, processors: Processors | None) -> int:
        """Return its bytes on a GPU; None for a typical one, with at least one block, so that records correspond."""
        if processors is None:
            return max(LEAST_BYTES, self.formula(self.counts, TYPICAL))
        return self.formula(self.counts, processors)

    def between(self, low: int, other: Scratch, high: int, microbatch: int) -> Scratch | None:
        """Return the same at another microbatch, given this at a low one and another at a high one; None off a line."""
        counts = []
        for small, large in zip(self.counts, other.counts, strict=True):
            more, rest = divmod(large - small, high - low)
            if rest:
                return None
            counts.append(small + more * (microbatch - low))
        return replace(self, counts=tuple(counts))


def reduction_bytes(counts: tuple[int, ...], processors: Processors) -> int:
    """Return what a sum over rows takes where several blocks add up one column, as for a bias's gradient.

    Args:
        counts: Columns, rows, and how many columns a thread takes at once.
        processors: The more there are, the more blocks share a column.

    >>> reduction_bytes((1024, 3250, 4), Processors(count=82, threads=1536))
    26738688
    """
    num_columns, num_rows, vector = counts
    most_threads = _BLOCK // vector
    across = min(_last_power(num_columns // vector), most_threads)
    down = min(_last_power(num_rows), most_threads)
    width = min(across, _WARP)
    height = min(down, most_threads // width)
    width = min(across, most_threads // height)
    values = num_rows
    if values < min(height * _FEWEST_VALUES, _MOST_VALUES):
        return 0  # each thread adds up whole columns
    values = -(-num_rows // height)
    grid = -(-(num_columns // vector) // width)
    wanted = processors.count * (processors.threads // (width * height))
    if values < _MOST_VALUES or grid > wanted:
        return 0
    blocks = max(min(-(-wanted // grid), -(-values // _FEWEST_VALUES)), -(-values // _MOST_VALUES))
    return FLOAT32_BYTES * num_columns * blocks * width * vector if blocks > 1 else 0


def embedding_bytes(counts: tuple[int, ...], _: Processors) -> int:
    """Return what the gradient of an embedding takes: a row of sums for every few indices and for every word.

    Args:
        counts: Indices, words and the numbers of a row.

    >>> embedding_bytes((5376, 8000, 384), TYPICAL)
    9082368
    """
    num_indices, num_words, width = counts
    if num_indices <= _FEW_INDICES:
        return 0
    num_rows = num_indices // _INDICES_PER_THREAD + min(num_indices, num_words)
    return num_rows * -(-width // _WARP) * _WARP * FLOAT32_BYTES


def _last_power(number: int) -> int:
    """Return the largest power of two that is not above a number."""
    return 1 << max(0, number.bit_length() - 1)
