"""The workload of `brim demo`: a tiny vision-language model that captions images of several crops.

A few crops of each image go through a vision encoder; their tokens are the prompt of a decoder, which generates a
caption with a key-value cache. More crops make longer prompts, so every `max_crops` needs a batch size of its own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from brim.workload import Workload

WIDTH = 64
NUM_HEADS = 2
NUM_LAYERS = 1
CROP_PIXELS = 96
PATCH_PIXELS = 12
NUM_CAPTION_TOKENS = 4
VOCABULARY = 2000

Cache = list[tuple[torch.Tensor, torch.Tensor]]


class Block(nn.Module):
    """One pre-norm transformer layer that may attend to what came before."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(
        self, x: torch.Tensor, past: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Return the layer's output and its keys and values, with those of the past before them."""
        batch, length, _ = x.shape
        mixed = self.attention(self.norm_attention(x)).view(batch, length, 3, NUM_HEADS, -1)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        if past is not None:
            key, value = torch.cat([past[0], key], dim=2), torch.cat([past[1], value], dim=2)
        scores = (query @ key.transpose(-1, -2) * (WIDTH // NUM_HEADS) ** -0.5).softmax(-1)
        attended = (scores @ value).transpose(1, 2).reshape(batch, length, WIDTH)
        x = x + self.project(attended)
        return x + self.feed_forward(x), (key, value)


class CaptioningModel(nn.Module):
    """A vision encoder for crops and a decoder for captions."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH_PIXELS, stride=PATCH_PIXELS)
        self.encoder = nn.ModuleList(Block() for _ in range(NUM_LAYERS))
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.decoder = nn.ModuleList(Block() for _ in range(NUM_LAYERS))

    def forward(self, crops: torch.Tensor) -> torch.Tensor:
        """Return the caption's tokens for images of shape (batch, crops, 3, pixels, pixels)."""
        batch = crops.shape[0]
        seen = self.patches(crops.flatten(0, 1)).flatten(2).transpose(1, 2)
        for block in self.encoder:
            seen, _ = block(seen)
        prompt = seen.reshape(batch, -1, WIDTH)
        cache: Cache = []
        for block in self.decoder:
            prompt, kept = block(prompt)
            cache.append(kept)
        caption = []
        last = prompt[:, -1:]
        for _ in range(NUM_CAPTION_TOKENS):
            token = F.linear(last, self.tokens.weight).argmax(-1)
            caption.append(token)
            last = self.tokens(token)
            for index, block in enumerate(self.decoder):
                last, cache[index] = block(last, cache[index])
        return torch.cat(caption, dim=1)


class MultiCropCaptioning(Workload):
    """Generates captions for images of `max_crops` crops."""

    kind = "generate"

    def build(self) -> None:
        """Make the model."""
        self.model = CaptioningModel().to(self.device).eval()

    def batch(self, size: int) -> torch.Tensor:
        """Return images that all have the most crops."""
        crops = int(self.case.get("max_crops", 2))
        return torch.randn(size, crops, 3, CROP_PIXELS, CROP_PIXELS, device=self.device)

    @torch.no_grad()
    def step(self, batch: torch.Tensor) -> None:
        """Generate every caption to its end."""
        self.model(batch)
