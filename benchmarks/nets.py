"""Nine nets of kinds that people train, small enough for a CPU: what `guided.py` searches.

Unlike the workloads of `finders.py` they were not chosen for even memory: images have three bands, sizes shrink from
layer to layer, and most tensors are small enough for glibc's heap.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from brim import Workload

NUM_CLASSES = 10
NUM_WORDS = 5000


class Classifier(Workload):
    """Trains `net` to tell classes apart, with AdamW."""

    def net(self) -> nn.Module:
        """Return the net."""
        raise NotImplementedError

    def inputs(self, size: int) -> torch.Tensor:
        """Return what the net looks at: images of 64 × 64 pixels."""
        return torch.randn(size, 3, 64, 64, device=self.device)

    def build(self) -> None:
        """Make the net and its optimizer."""
        self.model = self.net().to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return inputs and their classes."""
        return self.inputs(size), torch.randint(NUM_CLASSES, (size,), device=self.device)

    def step(self, batch: Any) -> None:
        """Train on one batch."""
        inputs, classes = batch
        F.cross_entropy(self.model(inputs), classes).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Pyramid(Classifier):
    """Convolutions with batch norm and pooling, ever wider and smaller."""

    def net(self) -> nn.Module:
        """Return four blocks and a classifier."""
        layers: list[nn.Module] = []
        before = 3
        for width in (32, 64, 128, 256):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
            before = width
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, NUM_CLASSES))


class PyramidEvaluated(Pyramid):
    """The same, evaluated."""

    kind = "eval"

    def step(self, batch: Any) -> None:
        """Classify one batch."""
        with torch.no_grad():
            self.model.eval()(batch[0]).argmax(-1)


class ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.convolve = nn.Sequential(
            nn.Conv2d(before, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut = nn.Conv2d(before, width, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return both ways, added."""
        return F.relu(self.convolve(images) + self.shortcut(images))


class ResNet(Classifier):
    """A residual net of four blocks."""

    def net(self) -> nn.Module:
        """Return the net."""
        blocks = [ResidualBlock(*sizes) for sizes in ((32, 32, 1), (32, 64, 2), (64, 128, 2), (128, 128, 1))]
        first = [nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
        return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, NUM_CLASSES))


class Mlp(Classifier):
    """Linear layers on vectors."""

    def net(self) -> nn.Module:
        """Return four layers."""
        widths = (784, 2048, 2048, 512)
        hidden = [(nn.Linear(before, width), nn.ReLU()) for before, width in pairwise(widths)]
        return nn.Sequential(*(layer for pair in hidden for layer in pair), nn.Linear(widths[-1], NUM_CLASSES))

    def inputs(self, size: int) -> torch.Tensor:
        """Return vectors."""
        return torch.randn(size, 784, device=self.device)


class UNet(Classifier):
    """A net that goes down and up again, with shortcuts, and classifies every pixel."""

    def net(self) -> nn.Module:
        """Return the net."""
        return UNetModel()

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images and the class of every pixel."""
        return self.inputs(size), torch.randint(NUM_CLASSES, (size, 64, 64), device=self.device)


class UNetModel(nn.Module):
    """Three levels of two convolutions each."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(_two_convolutions(*widths) for widths in ((3, 32), (32, 64), (64, 128)))
        self.middle = _two_convolutions(128, 128)
        self.up = nn.ModuleList(_two_convolutions(*widths) for widths in ((256, 64), (128, 32), (64, 32)))
        self.classify = nn.Conv2d(32, NUM_CLASSES, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return scores of every pixel."""
        kept = []
        for level in self.down:
            images = level(images)
            kept.append(images)
            images = F.max_pool2d(images, 2)
        images = self.middle(images)
        for level in self.up:
            images = level(torch.cat([F.interpolate(images, scale_factor=2), kept.pop()], 1))
        return self.classify(images)


def _two_convolutions(before: int, width: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(before, width, 3, padding=1), nn.GroupNorm(8, width), nn.SiLU()),
        *(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(8, width), nn.SiLU()),
    )


class AutoEncoder(Classifier):
    """Convolutions down and transposed ones up again, whose kernels take memory for every sample."""

    def net(self) -> nn.Module:
        """Return the net."""
        return nn.Sequential(
            *(nn.Conv2d(1, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()),
            *(nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 1, 4, 2, 1)),
        )

    def batch(self, size: int) -> Any:
        """Return small images."""
        return torch.rand(size, 1, 28, 28, device=self.device)

    def step(self, batch: Any) -> None:
        """Train on one batch."""
        F.mse_loss(self.model(batch), batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Texts(Classifier):
    """Classifies texts of 64 words."""

    def inputs(self, size: int) -> torch.Tensor:
        """Return texts."""
        return torch.randint(NUM_WORDS, (size, 64), device=self.device)

    def net(self) -> nn.Module:
        """Return embeddings, what reads them, and a classifier."""
        return TextModel(self.reader())

    def reader(self) -> nn.Module:
        """Return what reads the embeddings."""
        raise NotImplementedError


class TextModel(nn.Module):
    """Embeds words, reads them and classifies what was read, in the mean."""

    def __init__(self, reader: nn.Module, width: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(NUM_WORDS, width)
        self.read = reader
        self.classify = nn.Linear(width, NUM_CLASSES)

    def forward(self, texts: torch.Tensor) -> torch.Tensor:
        """Return scores of every text."""
        read = self.read(self.embed(texts))
        return self.classify((read[0] if isinstance(read, tuple) else read).mean(1))


class Encoder(Texts):
    """Four layers of torch's transformer."""

    def reader(self) -> nn.Module:
        """Return the layers."""
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 512, batch_first=True), 4)


class Lstm(Texts):
    """Two layers of an LSTM."""

    def reader(self) -> nn.Module:
        """Return the layers."""
        return nn.LSTM(128, 128, 2, batch_first=True)


class Bert(Texts):
    """Four layers of BERT, of which transformers' modules are imported where it is built."""

    def net(self) -> nn.Module:
        """Return a classifier of transformers."""
        from transformers import BertConfig, BertForSequenceClassification

        small = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
        return BertForSequenceClassification(BertConfig(vocab_size=NUM_WORDS, num_labels=NUM_CLASSES, **small))

    def step(self, batch: Any) -> None:
        """Train on one batch."""
        texts, classes = batch
        self.model(input_ids=texts, attention_mask=torch.ones_like(texts), labels=classes).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
