"""Small video nets, named after the models of torchvision whose family they belong to.

They share the kind of their layers with their namesakes, and nothing else: not the size, not the weights, not the
results. They are here so that `video_grid.yaml` runs in seconds on any machine.
"""

import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 4
# Family, width and depth of each.
SMALL = {
    "r3d_18": ("full", 8, 2),
    "mc3_18": ("mixed", 8, 2),
    "r2plus1d_18": ("factorised", 8, 2),
    "s3d": ("separable", 8, 3),
    "mvit_v1_b": ("pooling", 16, 3),
    "mvit_v2_s": ("pooling", 16, 2),
    "swin3d_b": ("windows", 24, 3),
    "swin3d_s": ("windows", 16, 3),
    "swin3d_t": ("windows", 16, 2),
}


def make_model(name, library):
    """Return a net that maps clips of shape (batch, 3, frames, pixels, pixels) to classes."""
    if library == "torchvision":
        from torchvision.models import get_model

        return get_model(name, weights=None, num_classes=CLASSES)
    family, width, depth = SMALL[name]
    if family in ("pooling", "windows"):
        return ClipTransformer(width, depth, pools=family == "pooling")
    return ClipConvNet(family, width, depth)


class ClipConvNet(nn.Module):
    """Convolutions over space and time, of one of four kinds, each followed by normalisation."""

    def __init__(self, family, width, depth):
        super().__init__()
        layers = [nn.Conv3d(3, width, 3, stride=(1, 2, 2), padding=1), nn.ReLU()]
        for index in range(depth):
            layers += [*convolutions(family, width, index), nn.BatchNorm3d(width), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, clips):
        """Return a score for every class."""
        return self.head(self.layers(clips).mean((2, 3, 4)))


def convolutions(family, width, index):
    """Return the convolutions of one layer."""
    space, time = {"kernel_size": (1, 3, 3), "padding": (0, 1, 1)}, {"kernel_size": (3, 1, 1), "padding": (1, 0, 0)}
    if family == "full" or (family == "mixed" and index == 0):
        return [nn.Conv3d(width, width, 3, padding=1)]
    if family == "mixed":
        return [nn.Conv3d(width, width, **space)]
    groups = width if family == "separable" else 1
    mix = [nn.Conv3d(width, width, 1)] if family == "separable" else []
    return [nn.Conv3d(width, width, groups=groups, **space), nn.Conv3d(width, width, groups=groups, **time), *mix]


class ClipTransformer(nn.Module):
    """Attention over patches of a clip, in one window a frame pair, or to keys that get fewer with every layer."""

    def __init__(self, width, depth, *, pools):
        super().__init__()
        self.patches = nn.Conv3d(3, width, (2, 4, 4), stride=(2, 4, 4))
        layers = (nn.TransformerEncoderLayer(width, 2, 2 * width, 0.0, batch_first=True) for _ in range(depth))
        self.layers = nn.ModuleList(layers)
        self.pools = pools
        self.head = nn.Linear(width, CLASSES)

    def forward(self, clips):
        """Return a score for every class."""
        seen = self.patches(clips)
        for index, layer in enumerate(self.layers):
            batch, width, frames, *pixels = seen.shape
            if self.pools:
                tokens = layer(seen.flatten(2).transpose(1, 2)).transpose(1, 2)
                seen = tokens.reshape(batch, width, frames, *pixels)
                seen = F.avg_pool3d(seen, (1, 2, 2)) if min(pixels) > 1 else seen
                continue
            # Every second layer's windows reach over to the next frames.
            shifted = torch.roll(seen, index % 2, dims=2)
            windows = shifted.reshape(batch, width, frames // 2, -1).permute(0, 2, 3, 1).flatten(0, 1)
            mixed = layer(windows).reshape(batch, frames // 2, -1, width).permute(0, 3, 1, 2)
            seen = mixed.reshape(batch, width, frames, *pixels)
        return self.head(seen.mean((2, 3, 4)))
