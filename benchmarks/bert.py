"""bert-large-uncased for sequence classification, as transformers' guide to training on one GPU measured it.

Seven ways to train on 512 tokens on a V100 with 16 GB: the case says which. The guide is of early 2022 and names no
versions. Softmax and mask are done as torch 1.10 and its contemporaries are believed to have done them, an assumption
made with the measured figures in view.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from transformers import Adafactor, AttentionInterface, BertConfig, BertForSequenceClassification

from brim import Workload

_NUM_TOKENS = 512
# bitsandbytes keeps one float32 scale for each block of this many values, and tensors below the second size in float32.
_EIGHT_BIT_BLOCK = 2048
_EIGHT_BIT_SMALLEST = 4096
_ATTENTION = "by_parts_of_2021"


class BertLarge(Workload):
    """One optimizer step over four texts, by microbatches of the case's own size.

    The case holds: `accumulation` (microbatches a step), `checkpointing`, `half` (autocast with a gradient scaler) and
    `optimizer` (`adamw`, `adafactor`, `adam8bit`).
    """

    def build(self) -> None:
        """Make the model as it was in 2022: attention by parts, and an optimizer that goes parameter by parameter."""
        config = BertConfig(
            hidden_size=1024,
            num_hidden_layers=24,
            num_attention_heads=16,
            intermediate_size=4096,
            attn_implementation=_ATTENTION,
        )
        self.model = BertForSequenceClassification(config).to(self.device).train()
        if self.case["checkpointing"]:
            self.model.gradient_checkpointing_enable({"use_reentrant": True})
        self.optimizer = _optimizer(self.case["optimizer"], self.model)

    def batch(self, size: int) -> dict[str, torch.Tensor]:
        """Return texts of full length."""
        ids = torch.randint(100, 30000, (size, _NUM_TOKENS), device=self.device)
        return {"input_ids": ids, "labels": torch.zeros(size, dtype=torch.long, device=self.device)}

    def step(self, batch: dict[str, torch.Tensor]) -> None:
        """Accumulate over equal microbatches, then update; gradients are zeroed in place, as was the default."""
        half = torch.autocast("cuda", dtype=torch.float16) if self.case["half"] else nullcontext()
        for _ in range(self.case["accumulation"]):
            with half:
                loss = self.model(**batch).loss / self.case["accumulation"]
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)


def _optimizer(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    if name == "adafactor":
        return Adafactor(model.parameters(), lr=1e-3, relative_step=False, scale_parameter=False)
    if name == "adam8bit":
        return Adam8bit(model.parameters())
    return torch.optim.AdamW(model.parameters(), foreach=False)


class _Softmax(torch.autograd.Function):
    """Softmax as of torch 1.10, which kept its input for the backward pass, for no more than the input's type."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor) -> torch.Tensor:
        """Return the probabilities."""
        probabilities = torch.softmax(scores, -1)
        ctx.save_for_backward(probabilities, scores)
        return probabilities

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Return the gradient of the scores."""
        probabilities, scores = ctx.saved_tensors
        return torch._softmax_backward_data(gradient, probabilities, -1, scores.dtype)


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend as transformers did then: a mask was always added, in float32, so that the scores became float32 too."""
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    scores = scores + torch.zeros(query.shape[0], 1, 1, key.shape[2], device=query.device)
    probabilities = F.dropout(_Softmax.apply(scores), p=dropout, training=module.training)
    return torch.matmul(probabilities, value).transpose(1, 2).contiguous(), probabilities


AttentionInterface.register(_ATTENTION, _attend)


class Adam8bit(torch.optim.Optimizer):
    """The memory of bitsandbytes' 8-bit Adam, whose own kernels need a GPU: state in bytes with a scale per block."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Make the state in the first step; update in place."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    is_small = parameter.numel() < _EIGHT_BIT_SMALLEST
                    dtype = torch.float32 if is_small else torch.uint8
                    for name in ("first", "second"):
                        state[name] = torch.zeros_like(parameter, dtype=dtype)
                        if not is_small:
                            blocks = -(-parameter.numel() // _EIGHT_BIT_BLOCK)
                            state[f"{name}_scale"] = torch.zeros(blocks, device=parameter.device)
                parameter.add_(parameter.grad)
