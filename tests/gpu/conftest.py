"""What tests on a CUDA device need; `make test-phantom` runs them on phantoms, `make test-gpu` on a real one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch

MIB = 2**20


@pytest.fixture
def room() -> Iterator[Callable[[int], None]]:
    """Leave torch's allocator so much of cuda:0, whatever the card has."""

    def leave(num_bytes: int) -> None:
        gc.collect()
        torch.cuda.empty_cache()
        _, total_bytes = torch.cuda.mem_get_info()
        torch.cuda.set_per_process_memory_fraction(num_bytes / total_bytes)

    yield leave
    torch.cuda.set_per_process_memory_fraction(1.0)
    gc.collect()
    torch.cuda.empty_cache()


@pytest.fixture
def computes() -> bool:
    """Whether kernels compute: on a phantom, what they would make reads as zeros."""
    return bool((torch.ones(4096, device="cuda") * 2).sum().item() == 2 * 4096)
