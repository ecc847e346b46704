"""Three of the four workloads that the finders are compared on; the fourth, GPT-2, is in `gpt2.py`.

Each has `model` and `optimizer` as attributes, so that a framework which wants to own them can be given the same ones.
Under the limit of `finders.py`, a step at the largest batch takes about half a second on two CPU cores.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from brim import Workload


class ConvNet(Workload):
    """Removes noise from images of 16 bands and 32 × 32 pixels with three convolutions, trained with SGD and momentum.

    All its images and feature maps have one size. At the largest batch it is above glibc's threshold of 32 MiB, where
    every tensor has its own mapping and memory grows evenly. A pyramid, or images of three bands, would have tensors
    below it, which live in the heap, where equal runs differ by several percent.
    """

    NUM_BANDS = 16
    NUM_LAYERS = 3
    IMAGE_PIXELS = 32

    def build(self) -> None:
        """Make the network, as wide in every layer."""
        bands = self.NUM_BANDS
        layers: list[nn.Module] = [nn.Conv2d(bands, bands, 3, padding=1)]
        for _ in range(self.NUM_LAYERS - 1):
            layers += [nn.BatchNorm2d(bands), nn.ReLU(), nn.Conv2d(bands, bands, 3, padding=1)]
        self.model = nn.Sequential(*layers).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return noisy images and their noise."""
        shape = (size, self.NUM_BANDS, self.IMAGE_PIXELS, self.IMAGE_PIXELS)
        noise = torch.randn(shape, device=self.device)
        return torch.rand(shape, device=self.device) + noise, noise

    def step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Train on one batch."""
        images, noise = batch
        F.mse_loss(self.model(images), noise).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Attention(nn.Module):
    """Self-attention that keeps the whole matrix of scores."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, of the shape of its input (batch, length, width)."""
        batch, length, width = x.shape
        mixed = self.mix(self.norm(x)).view(batch, length, 3, self.num_heads, width // self.num_heads)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        scores = (query @ key.transpose(-1, -2) * (width // self.num_heads) ** -0.5).softmax(-1)
        return x + self.project((scores @ value).transpose(1, 2).reshape(batch, length, width))


class LongAttention(Workload):
    """Predicts a sequence of 512 vectors with unfused attention, trained with AdamW: memory grows with length².

    Nearly all of it is scores, which are above glibc's threshold of 32 MiB at the largest batch (see `ConvNet`).
    """

    LENGTH = 512
    WIDTH = 16
    NUM_HEADS = 1

    def build(self) -> None:
        """Make one layer."""
        self.model = Attention(self.WIDTH, self.NUM_HEADS).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def batch(self, size: int) -> torch.Tensor:
        """Return sequences of full length."""
        return torch.randn(size, self.LENGTH, self.WIDTH, device=self.device)

    def step(self, batch: torch.Tensor) -> None:
        """Train on one batch."""
        F.mse_loss(self.model(batch)[:, :-1], batch[:, 1:]).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class ClickModel(nn.Module):
    """Pools the embeddings of a user's last items by learnt weights and scores them with an MLP."""

    def __init__(self, num_items: int, width: int) -> None:
        super().__init__()
        self.items = nn.Embedding(num_items, width)
        self.weigh = nn.Linear(width, 1)
        self.score = nn.Sequential(
            nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1), nn.Flatten(0)
        )

    def forward(self, history: torch.Tensor) -> torch.Tensor:
        """Return one score for each history of shape (batch, items)."""
        seen = self.items(history)
        return self.score((seen * self.weigh(seen).softmax(1)).sum(1))


class EmbeddingMlp(Workload):
    """Predicts a click from a user's last 200 items: a large embedding table and a small MLP, trained with AdamW."""

    NUM_ITEMS = 150_000
    WIDTH = 64
    NUM_SEEN = 200

    def build(self) -> None:
        """Make the table and the MLP."""
        self.model = ClickModel(self.NUM_ITEMS, self.WIDTH).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return full histories and whether they led to a click."""
        history = torch.randint(0, self.NUM_ITEMS, (size, self.NUM_SEEN), device=self.device)
        return history, torch.randint(0, 2, (size,), device=self.device).float()

    def step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Train on one batch."""
        history, clicked = batch
        F.binary_cross_entropy_with_logits(self.model(history), clicked).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
