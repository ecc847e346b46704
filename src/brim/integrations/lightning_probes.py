"""Probes of a Lightning module: trainers of this rank alone that tell nobody, and loaders to take samples from."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from torch.utils.data import DataLoader

from brim.errors import InputError

_TRAINER_LOGGERS = ("lightning.pytorch", "lightning.fabric")


def probe_trainer(trainer: pl.Trainer, *, steps: int, accumulation: int = 1, evaluates: bool = False) -> pl.Trainer:
    """Return a trainer for this rank alone, with the precision and clipping of the real one and nothing that tells."""
    device = trainer.strategy.root_device
    return pl.Trainer(
        accelerator=device.type,
        devices=1 if device.index is None else [device.index],
        plugins=[LightningEnvironment()],  # not that of torchrun, which would count the other ranks
        precision=trainer.precision,
        gradient_clip_val=trainer.gradient_clip_val,
        gradient_clip_algorithm=trainer.gradient_clip_algorithm,
        accumulate_grad_batches=accumulation,
        max_steps=steps,
        inference_mode=False,  # what a module keeps of a probe must be of use in training
        limit_val_batches=1.0 if evaluates else 0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def ddp_buckets(pl_module: pl.LightningModule) -> list[torch.Tensor]:
    """Return as much memory as DDP takes for exchanging gradients: probes run without it, each rank alone."""
    return [torch.zeros_like(parameter) for parameter in pl_module.parameters() if parameter.requires_grad]


@contextmanager
def as_before(trainer: pl.Trainer, pl_module: pl.LightningModule) -> Iterator[None]:
    """Give the module back to its trainer."""
    try:
        yield
    finally:
        pl_module.trainer = trainer


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the library while a probe runs."""
    levels = {name: logging.getLogger(name).level for name in _TRAINER_LOGGERS}
    for name in levels:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def train_loader(owner: Any) -> DataLoader[Any]:
    """Return the loader that a module or its datamodule makes for training."""
    return _single(owner.train_dataloader(), "train_dataloader returned")


def stage_loader(stage: str, trainer: pl.Trainer) -> DataLoader[Any]:
    """Return the loader that a trainer has loaded for an evaluation."""
    prefix = {"validate": "val"}.get(stage, stage)
    return _single(getattr(trainer, f"{prefix}_dataloaders"), f"trainer.{stage} has loaded")


def _single(loader: Any, where: str) -> DataLoader[Any]:
    if not isinstance(loader, DataLoader):
        raise InputError(f"{where} a {type(loader).__name__}; brim can probe with one DataLoader only.")
    return loader
