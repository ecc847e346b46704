"""Import torchvision and timm beside a torch without CUDA, where their native operators do not load: define them."""

from __future__ import annotations

import torch

if torch.version.cuda is None:
    _library = torch.library.Library("torchvision", "DEF")
    for _schema in (
        "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    ):
        _library.define(_schema)

import timm
import torchvision

__all__ = ["timm", "torchvision"]
