"""The GPT-2 workload; in a file of its own so that only its finders wait for transformers to be imported."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from brim import Workload


class Gpt2(Workload):
    """Trains a small GPT-2 from transformers, with a vocabulary of 4,096 and texts of 32 tokens, with AdamW."""

    LENGTH = 32
    WIDTH = 64
    NUM_LAYERS = 2
    NUM_HEADS = 4
    VOCABULARY = 4096

    def build(self) -> None:
        """Make the model from its configuration."""
        config = GPT2Config(
            vocab_size=self.VOCABULARY,
            n_positions=self.LENGTH,
            n_embd=self.WIDTH,
            n_layer=self.NUM_LAYERS,
            n_head=self.NUM_HEADS,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
        self.model = GPT2LMHeadModel(config).to(self.device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def batch(self, size: int) -> torch.Tensor:
        """Return texts of full length."""
        return torch.randint(0, self.VOCABULARY, (size, self.LENGTH), device=self.device)

    def step(self, batch: torch.Tensor) -> None:
        """Train on one batch."""
        self.model(input_ids=batch, labels=batch).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
