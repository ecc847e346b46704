"""The jobs of `timm-rtx3090-train.csv`, rebuilt from its notes; the case says which."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from brim import Workload
from in_place_abn import normalize_in_place
from vision_setup import timm

_NUM_CLASSES = 1000
# Today's timm builds the net of width 8 under these names. The widths that were measured:
_IG_WIDTHS = {"ig_resnext101_32x16d": 16, "ig_resnext101_32x32d": 32, "ig_resnext101_32x48d": 48}


class TimmTrain(Workload):
    """Trains a timm model in float16 by autocast with SGD and momentum."""

    def build(self) -> None:
        """Make the model in its layout."""
        timm.layers.set_fused_attn(False)
        self.format = torch.channels_last if self.case["layout"] == "nhwc" else torch.contiguous_format
        name, settings = self.case["model"], {}
        if name in _IG_WIDTHS:
            name, settings = "resnext101_32x32d", {"base_width": _IG_WIDTHS[name]}
        model = timm.create_model(name, pretrained=False, num_classes=_NUM_CLASSES, **settings)
        if name.startswith("tresnet"):
            normalize_in_place(model)
        self.model = model.to(self.device, memory_format=self.format).train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, foreach=False)

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images and labels."""
        pixels = self.case["image_size"]
        images = torch.randn(size, 3, pixels, pixels, device=self.device).contiguous(memory_format=self.format)
        return images, torch.zeros(size, dtype=torch.long, device=self.device)

    def step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Train on one batch, the backward pass inside the autocast block."""
        images, labels = batch
        self.optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cuda", dtype=torch.float16):
            F.cross_entropy(self.model(images), labels).backward()
        self.optimizer.step()
