"""Modules that run out of memory where a test wants it, with torch's own error."""

from __future__ import annotations

import torch
from torch import nn

# No machine has as much, so the allocator refuses it.
TOO_MANY_BYTES = 2**50


def overdraw() -> None:
    torch.empty(TOO_MANY_BYTES, dtype=torch.uint8)


class Overdraw(nn.Module):
    """Passes on what it is given, and runs out of memory for more than `limit` samples.

    Attributes:
        limit: The samples that fit; None for any number.
        place: `forward` or `backward`.
        calls: The samples of every forward pass.
    """

    def __init__(self, limit: int | None = None, place: str = "forward") -> None:
        super().__init__()
        self.limit = limit
        self.place = place
        self.calls: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append(len(x))
        is_too_large = self.limit is not None and len(x) > self.limit
        if is_too_large and self.place == "forward":
            overdraw()
        return _Passed.apply(x, is_too_large)


class _Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor, is_too_large: bool) -> torch.Tensor:
        ctx.is_too_large = is_too_large
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if ctx.is_too_large:
            overdraw()
        return gradient, None
