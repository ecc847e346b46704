"""Audits of the real frameworks, each in its documented style."""

import warnings

import lightning
import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import brim
from brim.training.auditing import Cause

TAIL_ONLY = [(), (), (Cause.CONSTANT_TAIL,)]


def make_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(5, 8, generator=generator), torch.randint(0, 4, (5,), generator=generator)) for _ in range(10)]


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def test_accelerate_divides_the_tail_by_the_constant():
    model = make_model()

    def train(loader):
        accelerator = Accelerator(gradient_accumulation_steps=4, cpu=True)
        prepared, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
        for x, y in loader:
            with accelerator.accumulate(prepared):
                accelerator.backward(F.cross_entropy(prepared(x), y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(prepared.parameters(), 0.01)
                optimizer.step()
                optimizer.zero_grad()

    report = brim.audit(
        train, model, make_batches(), lambda batch: F.cross_entropy(model(batch[0]), batch[1], reduction="sum")
    )
    assert [window.causes for window in report.windows] == TAIL_ONLY
    assert report.windows[-1].ratio == pytest.approx(0.5, rel=1e-5)


def test_lightning_divides_the_tail_by_the_constant(tmp_path):
    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = make_model()

        def training_step(self, batch, _):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    module = Module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's own, about workers and deprecations
        trainer = lightning.Trainer(
            accelerator="cpu", max_epochs=1, accumulate_grad_batches=4, gradient_clip_val=0.01, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=tmp_path,
        )  # fmt: skip
        report = brim.audit(
            trainer,
            module,
            make_batches(),
            lambda batch: F.cross_entropy(module.net(batch[0]), batch[1], reduction="sum"),
        )
    assert [window.causes for window in report.windows] == TAIL_ONLY
    assert report.windows[-1].ratio == pytest.approx(0.5, rel=1e-5)
    assert report.accumulation == 4


def make_trainer(tmp_path, *, counts_items: bool = True):
    """A Trainer of a tiny decoder on texts of which different shares are ignored."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        attention_dropout=0.2,
    )  # fmt: skip
    tokens = torch.randint(0, 50, (20, 12))
    labels = tokens.masked_fill(torch.arange(12) < torch.randint(0, 10, (20, 1)), -100)
    arguments = TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=4, num_train_epochs=1,
        report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    dataset = [{"input_ids": ids, "labels": targets} for ids, targets in zip(tokens, labels, strict=True)]
    trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=dataset)
    if not counts_items:
        trainer.model_accepts_loss_kwargs = False  # as for every model that does not take num_items_in_batch
    return trainer


@pytest.mark.filterwarnings("ignore")
def test_transformers_counts_the_items_of_its_window(tmp_path):
    report = brim.audit(make_trainer(tmp_path))
    assert [window.num_microbatches for window in report.windows] == [4, 4, 2]
    assert report.is_right
    assert report.causes == (Cause.DROPOUT,)


@pytest.mark.filterwarnings("ignore")
def test_transformers_with_a_model_that_does_not_count_is_a_mean_of_means(tmp_path):
    report = brim.audit(make_trainer(tmp_path, counts_items=False))
    assert report.causes == (Cause.MEAN_OF_MEANS, Cause.DROPOUT)
    assert "get_train_dataloader" not in vars(make_trainer(tmp_path))
