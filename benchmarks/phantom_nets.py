"""Nets in plain torch for the referee of traces: what people write themselves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 100
WORDS = 8000


class NanoGpt(nn.Module):
    """A GPT after nanoGPT: no biases, tied embeddings, attention by torch's own function."""

    def __init__(
        self, width: int = 384, heads: int = 6, layers: int = 6, tokens: int = 256, words: int = WORDS
    ) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight
        self.drop = nn.Dropout(0.1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return every token's scores, tokens in one row."""
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.drop(self.embed(ids) + self.position(places))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


class GptBlock(nn.Module):
    """Attention and a feed-forward layer, each on what is normalized before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(2))
        self.attend, self.project = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what the block makes of every token."""
        shape = (*x.shape[:2], self.heads, -1)
        query, key, value = (each.view(shape).transpose(1, 2) for each in self.attend(self.norms[0](x)).chunk(3, -1))
        dropout = 0.1 if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropout)
        x = x + self.drop(self.project(mixed.transpose(1, 2).reshape(x.shape)))
        return x + self.drop(self.down(F.gelu(self.up(self.norms[1](x)))))


class Texts(nn.Module):
    """Embeds words, reads them and says of every one which comes next."""

    def __init__(self, reader: nn.Module, width: int, out: int) -> None:
        super().__init__()
        self.embed, self.read, self.head = nn.Embedding(WORDS, width), reader, nn.Linear(out, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return every word's scores, words in one row."""
        read = self.read(self.embed(ids))
        return self.head(read[0] if isinstance(read, tuple) else read).flatten(0, 1)


class Translator(nn.Module):
    """torch's own transformer, from one text to the same."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.transformer = nn.Transformer(width, 4, 3, 3, 4 * width, batch_first=True)
        self.head = nn.Linear(width, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return every word's scores, words in one row."""
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        given = self.embed(ids)
        return self.head(self.transformer(given, given, tgt_mask=mask, tgt_is_causal=True)).flatten(0, 1)


class TextCnn(nn.Module):
    """Convolutions of three widths over words, and the largest of each."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.convolve = nn.ModuleList(nn.Conv1d(width, width, kernel) for kernel in (3, 4, 5))
        self.head = nn.Linear(3 * width, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the classes' scores."""
        words = self.embed(ids).transpose(1, 2)
        return self.head(F.dropout(torch.cat([F.relu(each(words)).amax(-1) for each in self.convolve], 1), 0.5))


class Recommender(nn.Module):
    """Tables of embeddings whose products are scored, after DLRM."""

    def __init__(self, width: int = 64, tables: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20_000, width) for _ in range(tables))
        self.top = perceptron((tables * (tables - 1) // 2 + width, 512, 256, CLASSES))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the classes' scores."""
        found = torch.stack([table(ids[:, number]) for number, table in enumerate(self.tables)], 1)
        products = found @ found.transpose(1, 2)
        rows, columns = torch.triu_indices(found.shape[1], found.shape[1], 1, device=ids.device)
        return self.top(torch.cat([products[:, rows, columns], found.mean(1)], 1))


class Residual(nn.Module):
    """Layers beside a shortcut."""

    def __init__(self, layers: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.layers, self.shortcut = layers, shortcut or nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        return F.relu(self.layers(x) + self.shortcut(x))


class Mixer(nn.Module):
    """A block of MLP-Mixer: tokens are mixed, then channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.tokens = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what was mixed."""
        x = x + self.tokens(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norms[1](x))


class UNet(nn.Module):
    """Three levels down and up again, joined at every level."""

    def __init__(self, block: Any, out: int = CLASSES, attend: bool = False) -> None:
        super().__init__()
        self.down = nn.ModuleList(block(*widths) for widths in ((3, 32), (32, 64), (64, 128)))
        self.middle = block(128, 128)
        self.attend = nn.MultiheadAttention(128, 4, batch_first=True) if attend else None
        self.up = nn.ModuleList(block(*widths) for widths in ((256, 64), (128, 32), (64, 32)))
        self.classify = nn.Conv2d(32, out, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return scores of every pixel."""
        kept = []
        for level in self.down:
            images = level(images)
            kept.append(images)
            images = F.max_pool2d(images, 2)
        images = self.middle(images)
        if self.attend is not None:
            rows = images.flatten(2).transpose(1, 2)
            images = images + self.attend(rows, rows, rows, need_weights=False)[0].transpose(1, 2).view_as(images)
        for level in self.up:
            images = level(torch.cat([F.interpolate(images, scale_factor=2), kept.pop()], 1))
        return self.classify(images)


class Variational(nn.Module):
    """An autoencoder that draws what it decodes."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            *(nn.Conv2d(3, 32, 3, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 64, 3, 2, 1), nn.LeakyReLU(0.2)),
            *(nn.Flatten(), nn.Linear(64 * 16 * 16, 256)),
        )
        self.decode = nn.Sequential(
            *(nn.Linear(128, 64 * 16 * 16), nn.Unflatten(1, (64, 16, 16)), nn.ReLU()),
            *(nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Sigmoid()),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the images as they come out again."""
        mean, spread = self.encode(images).chunk(2, 1)
        return self.decode(mean + torch.randn_like(spread) * (spread / 2).exp())


def perceptron(widths: Sequence[int]) -> nn.Module:
    """Return linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for before, width in pairwise(widths):
        layers += [nn.Linear(before, width), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def two_convolutions(before: int, width: int) -> nn.Module:
    """Return two convolutions with batch norm."""
    return nn.Sequential(
        *(nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
        *(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
    )


def two_grouped(before: int, width: int) -> nn.Module:
    """Return two convolutions with group norm and SiLU, as in nets for diffusion."""
    return nn.Sequential(
        *(nn.Conv2d(before, width, 3, padding=1), nn.GroupNorm(8, width), nn.SiLU()),
        *(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(8, width), nn.SiLU()),
    )


def pyramid() -> nn.Module:
    """Return a plain net of convolutions, after VGG."""
    layers: list[nn.Module] = []
    for before, width in pairwise((3, 32, 64, 128, 256)):
        layers += [two_convolutions(before, width), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 16, 512), nn.ReLU(), nn.Linear(512, CLASSES))


def residual_net() -> nn.Module:
    """Return four stages of residual blocks."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)]
    for before, width, stride in ((32, 32, 1), (32, 64, 2), (64, 128, 2), (128, 256, 2)):
        main = nn.Sequential(
            *(nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)),
        )
        shortcut = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        layers.append(Residual(main, shortcut))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, CLASSES))


def separable_net() -> nn.Module:
    """Return depthwise and pointwise convolutions, after MobileNet."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
    for before, width in pairwise((32, 64, 128, 128, 256)):
        layers += [
            nn.Conv2d(before, before, 3, 1, 1, groups=before, bias=False),
            nn.BatchNorm2d(before),
            nn.Hardswish(),
        ]
        layers += [nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.Hardswish()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, CLASSES))


def mixer_net() -> nn.Module:
    """Return patches through blocks of MLP-Mixer."""
    patches = nn.Sequential(nn.Conv2d(3, 256, 8, 8), nn.Flatten(2))
    blocks = [Mixer(64, 256) for _ in range(4)]
    return nn.Sequential(patches, _Swapped(), *blocks, nn.LayerNorm(256), _Mean(), nn.Linear(256, CLASSES))


def clips_net() -> nn.Module:
    """Return convolutions over films."""
    layers: list[nn.Module] = []
    for before, width in pairwise((3, 16, 32, 64)):
        layers += [nn.Conv3d(before, width, 3, padding=1), nn.BatchNorm3d(width), nn.ReLU(), nn.MaxPool3d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(64, CLASSES))


def waves_net() -> nn.Module:
    """Return dilated convolutions over sound."""
    layers: list[nn.Module] = [nn.Conv1d(1, 64, 9, 2, 4)]
    for step in range(5):
        main = nn.Sequential(nn.Conv1d(64, 128, 3, padding=2**step, dilation=2**step), nn.GLU(1), nn.InstanceNorm1d(64))
        layers.append(Residual(main))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, CLASSES))


def autoencoder() -> nn.Module:
    """Return convolutions down and transposed ones up again."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()),
        *(nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1)),
    )


class _Swapped(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


class _Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)
