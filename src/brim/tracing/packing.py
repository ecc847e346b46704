"""Packed sequences on fake tensors: batches of texts of several lengths, one after the other without their padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_functions = torch._C._VariableFunctions


class _Pack(torch.autograd.Function):
    """The samples of a padded batch without their padding, step by step."""

    @staticmethod
    def forward(ctx: Any, padded: torch.Tensor, num_rows: int) -> torch.Tensor:
        ctx.shape = padded.shape
        return padded.new_empty(num_rows, *padded.shape[2:])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient.new_zeros(ctx.shape), None


class _Pad(torch.autograd.Function):
    """The other way round."""

    @staticmethod
    def forward(ctx: Any, packed: torch.Tensor, shape: tuple[int, ...], batch_first: bool) -> torch.Tensor:
        ctx.shape = packed.shape
        padded = packed.new_full((*shape, *packed.shape[1:]), 0)
        return padded.transpose(0, 1) if batch_first else padded

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient.new_empty(ctx.shape), None, None


def _pack(padded: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Pack a batch; where its lengths are values that a trace does not have, all samples have the longest."""
    num_samples, num_steps = padded.shape[:2] if batch_first else (padded.shape[1], padded.shape[0])
    known = _known(lengths)
    ends = [num_steps] * num_samples if known is None else known
    sizes = [sum(end > step for end in ends) for step in range(max(ends, default=0))]
    return _Pack.apply(padded, sum(sizes)), torch.tensor(sizes, dtype=torch.int64)


def _pad(
    packed: torch.Tensor, sizes: torch.Tensor, batch_first: bool, padding: float, total_length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    known = _known(sizes)
    if known is None:
        return _functions._pad_packed_sequence(packed, sizes, batch_first, padding, total_length)
    num_steps = max(total_length, len(known))
    lengths = [sum(size > sample for size in known) for sample in range(known[0] if known else 0)]
    padded = _Pad.apply(packed, (num_steps, len(lengths)), batch_first)
    return padded, torch.tensor(lengths, dtype=torch.int64)


def _known(values: torch.Tensor) -> list[int] | None:
    """Return the values of a tensor; None where a trace does not have them."""
    constant = values.constant if isinstance(values, FakeTensor) else values
    return None if constant is None else constant.tolist()


# What stands in for the functions of torch in a trace.
FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    _functions._pack_padded_sequence: _pack,
    _functions._pad_packed_sequence: _pad,
}
