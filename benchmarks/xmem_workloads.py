"""The jobs of `xmem-runs.csv`, rebuilt from its notes; the case says which.

The language models are those of the transformers that were measured (`xmem-requirements.txt`), not today's.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import transformers
from transformers.modeling_attn_mask_utils import AttentionMaskConverter

from brim import Workload
from vision_setup import torchvision  # before transformers, which looks for torchvision too

# Whether a mask can be left out: not with texts that are padded to the longest in their batch, as those were.
AttentionMaskConverter._ignore_causal_mask_sdpa = staticmethod(lambda *args, **kwargs: False)

_CNNS = {
    "VGG16": "vgg16",
    "MobileNetV2": "mobilenet_v2",
    "RegNetX400MF": "regnet_x_400mf",
    "ConvNeXtTiny": "convnext_tiny",
    "MnasNet": "mnasnet1_0",
}
_IMAGE_PIXELS = 86
_NUM_TOKENS = 128


class Run(Workload):
    """Trains with an optimizer's defaults; `zero_grad` says when gradients are dropped."""

    def build(self) -> None:
        """Make the model and its optimizer."""
        self.model = self.make_model().to(self.device).train()
        self.optimizer = getattr(torch.optim, self.case["optimizer"])(self.model.parameters(), lr=0.001)
        self.outputs: Any = None

    def make_model(self) -> torch.nn.Module:
        """Return the model."""
        raise NotImplementedError

    def loss(self, batch: Any) -> torch.Tensor:
        """Return the loss of a batch."""
        raise NotImplementedError

    def step(self, batch: Any) -> None:
        """Train on one batch."""
        mode = self.case.get("zero_grad", 0)
        if mode == 0:
            self.optimizer.zero_grad()
        loss = self.loss(batch)
        if mode == 1:
            self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if mode == 2:
            self.optimizer.zero_grad()


class Cnn(Run):
    """A torchvision model on images of 86 × 86 pixels."""

    def make_model(self) -> torch.nn.Module:
        """Return the model without weights."""
        name = _CNNS[self.case["model"]]
        classes = 10 if name == "mnasnet1_0" else 1000
        return getattr(torchvision.models, name)(weights=None, num_classes=classes)

    def batch(self, size: int) -> Any:
        """Return images and labels."""
        images = torch.randn(size, 3, _IMAGE_PIXELS, _IMAGE_PIXELS, device=self.device)
        return images, torch.zeros(size, dtype=torch.long, device=self.device)

    def loss(self, batch: Any) -> torch.Tensor:
        """Return the cross-entropy."""
        images, labels = batch
        return F.cross_entropy(self.model(images), labels)


class Transformer(Run):
    """A causal language model on texts of 128 tokens; the last outputs live on through the next forward pass.

    The case may hold `first_tokens`: how long the texts of the first batch are.
    """

    def make_model(self) -> torch.nn.Module:
        """Return the model from its configuration."""
        name = self.case["model"]
        if "gpt-neo" in name:
            config = transformers.GPTNeoConfig(
                hidden_size=768,
                num_layers=12,
                num_heads=12,
                attention_types=[[["global", "local"], 6]],
                window_size=256,
                vocab_size=50257,
            )
            return transformers.GPTNeoForCausalLM(config)
        if "distilgpt2" in name:
            return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=6))
        config = transformers.OPTConfig(
            hidden_size=768, num_hidden_layers=12, num_attention_heads=12, ffn_dim=3072, vocab_size=50272
        )
        return transformers.OPTForCausalLM(config)

    def batch(self, size: int) -> Any:
        """Return texts of full length."""
        ids = torch.zeros(size, _NUM_TOKENS, dtype=torch.long, device=self.device)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}

    def step(self, batch: Any) -> None:
        """Train on one batch."""
        if self.outputs is None and "first_tokens" in self.case:
            batch = {name: ids[:, : self.case["first_tokens"]].contiguous() for name, ids in batch.items()}
        super().step(batch)

    def loss(self, batch: Any) -> torch.Tensor:
        """Return the model's own loss and keep its outputs."""
        self.outputs = self.model(**batch)
        return self.outputs.loss
