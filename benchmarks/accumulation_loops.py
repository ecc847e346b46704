"""The loops whose gradients are compared, each in its documented style, on the same texts and the same decoder."""

from __future__ import annotations

import tempfile
from typing import Any

import lightning
import torch
from accelerate import Accelerator
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

import brim

ACCUMULATION = 4
NUM_MICROBATCHES = 10
LENGTH = 32
VOCABULARY = 100
LEARNING_RATE = 0.1
IGNORED = -100

Batch = dict[str, torch.Tensor]


def make_batches() -> list[Batch]:
    """Return microbatches of two texts each, of which different shares are to be learned."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCABULARY, (2 * NUM_MICROBATCHES, LENGTH), generator=generator)
    num_ignored = torch.randint(0, LENGTH - 2, (2 * NUM_MICROBATCHES, 1), generator=generator)
    labels = tokens.masked_fill(torch.arange(LENGTH) < num_ignored, IGNORED)
    return [
        {"input_ids": ids, "labels": targets} for ids, targets in zip(tokens.split(2), labels.split(2), strict=True)
    ]


def make_model() -> LlamaForCausalLM:
    """Return a decoder of one layer without dropout."""
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
        )
    )


def count_items(batch: Batch) -> int:
    """Return how many labels are targets: the first one of each text is not."""
    return int((batch["labels"][:, 1:] != IGNORED).sum())


def audit(loop: Any, model: torch.nn.Module, batches: list[Batch]) -> brim.AuditReport:
    """Audit a loop whose model returns the mean loss over a microbatch's labels."""

    def loss_fn(batch: Batch) -> tuple[torch.Tensor, int]:
        items = count_items(batch)
        return model(**batch).loss * items, items

    return brim.audit(loop, model, batches, loss_fn, accumulation=ACCUMULATION)


def with_brim(batches: list[Batch]) -> brim.AuditReport:
    """Train with `brim.Accumulator`."""
    model = make_model()

    def train(loader: Any) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        acc = brim.Accumulator(model, optimizer, accumulation=ACCUMULATION)
        for batch in loader:
            items = count_items(batch)
            acc.backward(model(**batch).loss * items, items=items)
        acc.finish()

    return audit(train, model, batches)


def by_hand(batches: list[Batch]) -> brim.AuditReport:
    """Train with the loop that most tutorials show."""
    model = make_model()

    def train(loader: Any) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        for step, batch in enumerate(loader, 1):
            (model(**batch).loss / ACCUMULATION).backward()
            if step % ACCUMULATION == 0 or step == len(loader):
                optimizer.step()
                optimizer.zero_grad()

    return audit(train, model, batches)


def with_accelerate(batches: list[Batch]) -> brim.AuditReport:
    """Train with Accelerate's `accumulate`."""
    model = make_model()

    def train(loader: Any) -> None:
        accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATION, cpu=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        prepared, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for batch in loader:
            with accelerator.accumulate(prepared):
                accelerator.backward(prepared(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()

    return audit(train, model, batches)


class _Decoder(lightning.LightningModule):
    """The decoder as a LightningModule."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = make_model()

    def forward(self, **batch: torch.Tensor) -> Any:
        """Run the decoder."""
        return self.decoder(**batch)

    def training_step(self, batch: Batch, _: int) -> torch.Tensor:
        """Return the mean loss over the labels."""
        return self(**batch).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer that all loops use."""
        return torch.optim.SGD(self.parameters(), lr=LEARNING_RATE)


def with_lightning(batches: list[Batch]) -> brim.AuditReport:
    """Train with Lightning's Trainer."""
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=ACCUMULATION,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    return audit(trainer, _Decoder(), batches)


def with_transformers(batches: list[Batch], model: torch.nn.Module | None = None) -> brim.AuditReport:
    """Train with transformers' Trainer."""
    model = model or make_model()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=ACCUMULATION,
            num_train_epochs=1,
            learning_rate=LEARNING_RATE,
            optim="sgd",
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        texts = [{name: values[k] for name, values in batch.items()} for batch in batches for k in range(2)]
        trainer = Trainer(model, arguments, train_dataset=texts)
        trainer.remove_callback(PrinterCallback)
        return audit(trainer, model, batches)


def with_transformers_gpt2(batches: list[Batch]) -> brim.AuditReport:
    """Train a GPT-2 with transformers' Trainer."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return with_transformers(batches, GPT2LMHeadModel(config))


LOOPS = {
    "brim.Accumulator": with_brim,
    "by hand, loss / 4": by_hand,
    "Accelerate": with_accelerate,
    "Lightning Trainer": with_lightning,
    "transformers Trainer": with_transformers,
    "transformers Trainer, GPT-2": with_transformers_gpt2,
}
