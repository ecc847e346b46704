"""Transformers from their configurations: 70 billion parameters in training, and four layers that generate."""

import torch
import transformers

import brim


class Llama70b(brim.Workload):
    """Trains on texts of 2,048 tokens in bfloat16."""

    kind = "train"

    def build(self) -> None:
        """Make the model and its optimizer."""
        config = transformers.LlamaConfig(
            hidden_size=8192,
            intermediate_size=28672,
            num_hidden_layers=80,
            num_attention_heads=64,
            num_key_value_heads=8,
            vocab_size=128256,
            max_position_embeddings=8192,
            use_cache=False,
        )
        with torch.device(self.device):
            self.model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
        self.model.gradient_checkpointing_enable()
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def batch(self, size: int) -> torch.Tensor:
        """Return `size` texts."""
        return torch.randint(0, 128256, (size, 2048), device=self.device)

    def step(self, batch: torch.Tensor) -> None:
        """Train once."""
        self.model(input_ids=batch, labels=batch).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class LlamaGenerate(brim.Workload):
    """Writes 256 tokens after 8, so that the cache makes the peak."""

    kind = "generate"

    def build(self) -> None:
        """Make the model."""
        config = transformers.LlamaConfig(
            hidden_size=1024,
            intermediate_size=2816,
            num_hidden_layers=4,
            num_attention_heads=16,
            num_key_value_heads=4,
            vocab_size=32000,
            pad_token_id=0,
        )
        self.model = transformers.LlamaForCausalLM(config).to(self.device).eval()

    def batch(self, size: int) -> torch.Tensor:
        """Return `size` beginnings."""
        return torch.ones(size, 8, dtype=torch.long, device=self.device)

    @torch.no_grad()
    def step(self, batch: torch.Tensor) -> None:
        """Go on with them."""
        self.model.generate(batch, attention_mask=torch.ones_like(batch), max_new_tokens=256, do_sample=False)
