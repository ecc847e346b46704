"""Batch normalization and activation in place, as timm 0.6 built TResNet; today's timm keeps their inputs as well.

The package it came from, inplace_abn, has kernels for CUDA alone. These do no arithmetic: they hold what those hold.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vision_setup import timm


class _InPlaceAbn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(images)
        variance = torch.empty_like(weight)
        ctx.save_for_backward(images.mul_(1.0), weight, bias, variance)
        return images

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        images, weight, bias, _ = ctx.saved_tensors
        # What was normalized, computed back from the result, and the gradient before the activation, which becomes that
        # of the images. Source: `InPlaceABN.backward` in the package's functions.py.
        _normalized, gradient = torch.empty_like(images), torch.empty_like(gradients[0])
        return gradient, torch.empty_like(weight), torch.empty_like(bias)


class InPlaceAbn(nn.Module):
    """Normalizes and activates what it is given and returns it."""

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))
        self.register_buffer("running_mean", torch.zeros(num_channels))
        self.register_buffer("running_var", torch.ones(num_channels))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Change the images in place."""
        changed: torch.Tensor = _InPlaceAbn.apply(images, self.weight, self.bias)
        return changed


def normalize_in_place(model: nn.Module) -> None:
    """Put the in-place kind in the place of every normalization with an activation."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, timm.layers.BatchNormAct2d):
                setattr(module, name, InPlaceAbn(child.num_features))
