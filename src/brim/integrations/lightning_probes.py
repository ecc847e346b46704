"""Probes of a Lightning module: trainers of this rank alone that tell nobody, and loaders to take samples from."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from brim.errors import InputError
from brim.extras import needed

AT_LEAST = "2.5"
with needed("lightning", AT_LEAST):
    import lightning.pytorch as pl
    from lightning.fabric.plugins.environments.lightning import LightningEnvironment
    from lightning.pytorch.utilities.model_helpers import is_overridden

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


def check_library(trainer: Any, pl_module: Any) -> None:
    """Refuse the other package of the same code: the trainers of one take no module of the other."""
    for given, wanted in ((trainer, pl.Trainer), (pl_module, pl.LightningModule)):
        if not isinstance(given, wanted):
            raise InputError(
                f"{type(given).__name__} is no {wanted.__name__} of lightning.pytorch, which brim works with; those of "
                "pytorch_lightning are other classes. Use: import lightning.pytorch as pl"
            )


def train_loader(owner: Any, batch_arg_name: str) -> DataLoader[Any]:
    """Return the loader that a module or its datamodule makes for training."""
    if not is_overridden("train_dataloader", owner):
        raise InputError(
            f"{type(owner).__name__} has {batch_arg_name} and no train_dataloader. Make the loader there, with "
            f"batch_size=self.{batch_arg_name}, and hand none to trainer.fit."
        )
    return _single(owner.train_dataloader(), "train_dataloader returned")


def stage_loader(stage: str, trainer: pl.Trainer) -> DataLoader[Any]:
    """Return the loader that a trainer has loaded for a stage."""
    name = {"fit": "train_dataloader", "validate": "val_dataloaders"}.get(stage, f"{stage}_dataloaders")
    return _single(getattr(trainer, name), f"trainer.{stage} has loaded")


def samples_per_rank(loader: DataLoader[Any], *, ranks: int) -> int | None:
    """Return how many samples of a loader each rank gets; None where its data has no length."""
    if isinstance(loader.sampler, DistributedSampler):
        return max(1, len(loader.sampler))
    counted: Any = loader.dataset if isinstance(loader.dataset, IterableDataset) else loader.sampler
    if not hasattr(counted, "__len__"):
        return None
    return max(1, -(-len(counted) // ranks))


def _single(loader: Any, where: str) -> DataLoader[Any]:
    if not isinstance(loader, DataLoader):
        raise InputError(f"{where} a {type(loader).__name__}; brim can probe with one DataLoader only.")
    return loader
