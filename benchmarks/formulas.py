"""How far the formulas of `brim plan --model` are from a trace of the same model in transformers.

Run with `python benchmarks/formulas.py`; writes benchmarks/results/formulas.json. Needs no GPU and little memory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from brim import Case, Workload
from brim.planning.footprint import Training, checkpointed, footprint
from brim.planning.shapes import ModelShape, find_model
from brim.tracing import trace

RESULTS = Path(__file__).parent / "results" / "formulas.json"
MODELS = ("llama-3.2-1b", "llama-3.2-3b", "llama-2-7b", "llama-3.1-8b", "qwen2.5-7b")
SEQ_LEN = 2048
MICROBATCHES = (1, 4)
A100 = (8, 0)


class Finetune(Workload):
    """Trains a model of the catalog in bfloat16 with AdamW, and accumulates two microbatches."""

    def build(self) -> None:
        """Make the model from its shape."""
        shape = find_model(str(self.case["model"]))
        family = transformers.Qwen2ForCausalLM if shape.qkv_bias else transformers.LlamaForCausalLM
        self.model: Any = family(_config(shape, family.config_class)).to(torch.bfloat16).to(self.device).train()
        if self.case["checkpointing"]:
            self.model.gradient_checkpointing_enable()
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def batch(self, size: int) -> torch.Tensor:
        """Return texts of full length."""
        return torch.randint(0, 1000, (size, SEQ_LEN), device=self.device)

    def step(self, batch: torch.Tensor) -> None:
        """Train on two microbatches."""
        for _ in range(2):
            self.model(input_ids=batch, labels=batch).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def _config(shape: ModelShape, config_class: Any) -> Any:
    return config_class(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.intermediate,
        vocab_size=shape.vocab,
        tie_word_embeddings=shape.tied,
        use_cache=False,
    )


def compare(model: str, microbatch: int, *, is_checkpointed: bool) -> dict[str, Any]:
    """Return the peak by formulas and by a trace."""
    shape = find_model(model)
    held = footprint(shape, Training(seq_len=SEQ_LEN))
    if is_checkpointed:
        held = checkpointed(held, num_blocks=shape.layers, block_input_bytes=2 * SEQ_LEN * shape.hidden)
    case = Case({"model": model, "checkpointing": is_checkpointed})
    traced_bytes = trace(Finetune, case, microbatch, capability=A100).peak_bytes
    formula_bytes = held.peak_bytes(microbatch)
    return {
        "model": model,
        "microbatch": microbatch,
        "checkpointing": is_checkpointed,
        "formula_bytes": formula_bytes,
        "traced_bytes": traced_bytes,
        "error": formula_bytes / traced_bytes - 1,
    }


def main() -> None:
    """Compare every model, print and write what came out."""
    rows = []
    for model in MODELS:
        for microbatch in MICROBATCHES:
            for is_checkpointed in (False, True):
                row = compare(model, microbatch, is_checkpointed=is_checkpointed)
                rows.append(row)
                print(
                    f"{model:14} microbatch {microbatch} checkpointing {is_checkpointed!s:5} "
                    f"formula {row['formula_bytes'] / 1e9:7.2f} GB, traced {row['traced_bytes'] / 1e9:7.2f} GB, "
                    f"{row['error']:+.1%}",
                    flush=True,
                )
    largest = max(rows, key=lambda row: abs(row["error"]))
    document = {"seq_len": SEQ_LEN, "largest_error": largest["error"], "rows": rows}
    RESULTS.write_text(json.dumps(document, indent=2) + "\n")
    print(f"largest error {largest['error']:+.1%}")


if __name__ == "__main__":
    main()
