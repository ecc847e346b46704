"""Fake tensors: sizes and lifetimes without memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import FakeTensorMode


@contextmanager
def fake_tensors() -> Iterator[FakeTensorMode]:
    """Make every tensor that is created in the block a fake one, and let modules be moved as usual."""
    swap_tensors = torch.utils.swap_tensors
    torch.utils.swap_tensors = _take_data
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            yield mode
    finally:
        torch.utils.swap_tensors = swap_tensors


def _take_data(target: torch.Tensor, source: torch.Tensor) -> None:
    """Do what `Module.to` needs of `swap_tensors`, which refuses fake tensors because their mode refers to them."""
    target.data = source.data
