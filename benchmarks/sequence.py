"""A workload whose case is the length of its sequences, for the memory of batches of different lengths."""

from __future__ import annotations

import torch
from torch import nn

from brim import Workload
from workloads import Attention


class Unfused(Workload):
    """Trains two layers of attention that keeps its scores, with AdamW: memory grows with length²."""

    WIDTH = 128
    NUM_LAYERS = 2
    NUM_HEADS = 4

    def build(self) -> None:
        """Make the layers."""
        layers = [Attention(self.WIDTH, self.NUM_HEADS) for _ in range(self.NUM_LAYERS)]
        self.model = nn.Sequential(*layers).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def batch(self, size: int) -> torch.Tensor:
        """Return sequences of the case's length."""
        return torch.randn(size, int(self.case["seq_len"]), self.WIDTH, device=self.device)

    def step(self, batch: torch.Tensor) -> None:
        """Train on one batch."""
        self.model(batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
