"""A vision-language model of transformers that generates: LLaVA, small, with random weights."""

from __future__ import annotations

from typing import Any

import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from brim import Workload

_IMAGE_PIXELS = 32
_PATCH_PIXELS = 8
_IMAGE_TOKEN = 999
_NUM_PROMPT_TOKENS = 8
_NUM_NEW_TOKENS = 6


class Answers(Workload):
    """Answers questions about images that are cut into `max_crops` crops."""

    kind = "generate"

    def build(self) -> None:
        """Make the model from its configuration."""
        vision = CLIPVisionConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=_IMAGE_PIXELS,
            patch_size=_PATCH_PIXELS,
        )
        text = LlamaConfig(
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            vocab_size=1000,
            max_position_embeddings=512,
        )
        config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=_IMAGE_TOKEN)
        self.model = LlavaForConditionalGeneration(config).to(self.device).eval()

    def batch(self, size: int) -> dict[str, torch.Tensor]:
        """Return the worst of a group: every request has all its crops."""
        crops = self.case["max_crops"]
        num_image_tokens = crops * (_IMAGE_PIXELS // _PATCH_PIXELS) ** 2
        ids = torch.ones(size, num_image_tokens + _NUM_PROMPT_TOKENS, dtype=torch.long, device=self.device)
        ids[:, :num_image_tokens] = _IMAGE_TOKEN
        images = torch.randn(size * crops, 3, _IMAGE_PIXELS, _IMAGE_PIXELS, device=self.device)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": images}

    def step(self, batch: Any) -> None:
        """Generate to the last token."""
        self.model.generate(
            **batch, max_new_tokens=_NUM_NEW_TOKENS, min_new_tokens=_NUM_NEW_TOKENS, do_sample=False, pad_token_id=0
        )
