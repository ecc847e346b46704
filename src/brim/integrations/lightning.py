"""A Lightning callback in the place of `BatchSizeFinder`: the largest batch that fits, also for DDP.

    trainer = Trainer(callbacks=[BatchSizeCallback()], devices=2, strategy="ddp")
    trainer.fit(module)  # module.batch_size and the trainer's accumulate_grad_batches are set before the data is loaded

Every probe is a trainer of its own that really fits the module for a few steps, on the longest sample of its data.
"""

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

from brim.devices import resolve
from brim.errors import InputError, NothingFitsError
from brim.finding.in_job import JobSearch, Ranks
from brim.finding.observer import LogObserver
from brim.findings import Finding
from brim.integrations.even_plans import among_divisors, arithmetic, even_share, split_evenly
from brim.integrations.extras import require
from brim.integrations.samples import Repeated, longest_sample, num_elements
from brim.integrations.telling import identity, job_logger
from brim.planning import BatchPlan
from brim.probing.loop import LoopProber
from brim.searching import Bounds

AT_LEAST = "2.5"
# How far above the batch it has is looked for more, where no effective batch is to be kept.
GROWTH = 64
_TRAINER_LOGGERS = ("lightning.pytorch", "lightning.fabric")


class BatchSizeCallback(pl.Callback):
    """Sets the batch size of a module or its datamodule to the largest that fits, when `fit` starts.

    Args:
        batch_arg_name: The attribute that the module or its datamodule makes its loader with.
        effective: Samples per optimizer step over all ranks, kept exact by accumulation; None to change no
            accumulation and look for the largest batch.
        cap: The largest batch to try; None for 64 times what it is now.
        memory: What the process may have in all, e.g. `"8GiB"`; None for what is free on the device.
        fill: The share of `memory` that the peak may use.
        steps: Optimizer steps in each probe.
        cache: Whether to use and extend the history of findings. A hit costs one confirming probe.

    Attributes:
        finding: What was found, after `fit` has started.
        plan: How the effective batch is split, where there is one.
    """

    def __init__(
        self,
        *,
        batch_arg_name: str = "batch_size",
        effective: int | None = None,
        cap: int | None = None,
        memory: str | int | None = None,
        fill: float = 0.9,
        steps: int = 3,
        cache: bool = True,
    ) -> None:
        require("lightning", AT_LEAST)
        self._name = batch_arg_name
        self._effective = effective
        self._cap = cap
        self._memory = memory
        self._fill = fill
        self._steps = steps
        self._cache = cache
        self.finding: Finding | None = None
        self.plan: BatchPlan | None = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find the batch size and set it; the trainer loads its data after this."""
        owner = self._owner(trainer, pl_module)
        ranks = Ranks()
        logger = job_logger(ranks.rank)
        now = getattr(owner, self._name)
        logger.info("looking for the largest %s from %d on", self._name, now)
        self.finding = self._search(trainer, pl_module, owner, ranks).run()
        if self.finding.microbatch is None:
            raise NothingFitsError(f"{self.finding.note}. `brim plan --ladder` shows what saves how much.")
        setattr(owner, self._name, self.finding.microbatch)
        if self._effective is not None:
            self.plan = split_evenly(self._effective, self.finding, ranks=ranks.count)
            trainer.accumulate_grad_batches = self.plan.accumulation
            logger.info("training with %s", arithmetic(self.plan))
        else:
            logger.info("training with %s %d", self._name, self.finding.microbatch)

    def _owner(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> Any:
        for owner in (trainer.datamodule, pl_module):  # type: ignore[attr-defined]  # its type lacks it
            if owner is not None and isinstance(getattr(owner, self._name, None), int):
                return owner
        raise InputError(
            f"Neither the module nor its datamodule has a whole number {self._name!r}. Set it in __init__ and make the "
            f"DataLoader with it: DataLoader(data, batch_size=self.{self._name})."
        )

    def _search(self, trainer: pl.Trainer, pl_module: pl.LightningModule, owner: Any, ranks: Ranks) -> JobSearch:
        device = resolve(str(trainer.strategy.root_device), memory=self._memory, fill=self._fill)
        loader = _loader(owner)
        sample = longest_sample(loader.dataset)
        accumulation = trainer.accumulate_grad_batches
        strategy = share = None
        now = getattr(owner, self._name)
        if self._effective is None:
            cap = self._cap or GROWTH * now
            bounds = Bounds(cap=cap, start=min(now, cap))
        else:
            share = even_share(self._effective, ranks=ranks.count)
            bounds, strategy = among_divisors(share, start=now, device=device)

        def loop(size: int) -> None:
            held = 2 if (size < share if share else accumulation > 1) else 1
            data = Repeated(sample, size * held * self._steps)
            buckets = _ddp_buckets(pl_module) if ranks.count > 1 else []  # noqa: F841  held while the probe runs
            with _as_before(trainer, pl_module), _quiet():
                probe = _probe_trainer(trainer, accumulation=held, steps=self._steps)
                probe.fit(pl_module, DataLoader(data, batch_size=size, collate_fn=loader.collate_fn))

        label, sources = identity(type(pl_module))
        settings = {"elements": num_elements(sample), "share": share, "precision": str(trainer.precision)}
        settings["parameters"] = sum(parameter.numel() for parameter in pl_module.parameters())
        return JobSearch(
            prober=LoopProber(loop, device), label=label, device=device, bounds=bounds, strategy=strategy,
            observer=LogObserver(job_logger(ranks.rank)), steps=self._steps, settings=settings, sources=sources,
            cache=self._cache, ranks=ranks,
        )  # fmt: skip


def _probe_trainer(trainer: pl.Trainer, *, accumulation: int, steps: int) -> pl.Trainer:
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
        limit_val_batches=0,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def _ddp_buckets(pl_module: pl.LightningModule) -> list[torch.Tensor]:
    """Return as much memory as DDP takes for exchanging gradients: probes run without it, each rank alone."""
    return [torch.zeros_like(parameter) for parameter in pl_module.parameters() if parameter.requires_grad]


@contextmanager
def _as_before(trainer: pl.Trainer, pl_module: pl.LightningModule) -> Iterator[None]:
    """Give the module back to its trainer."""
    try:
        yield
    finally:
        pl_module.trainer = trainer


@contextmanager
def _quiet() -> Iterator[None]:
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


def _loader(owner: Any) -> Any:
    loader = owner.train_dataloader()
    if not isinstance(loader, DataLoader):
        raise InputError(
            f"train_dataloader returned a {type(loader).__name__}; brim can probe with one DataLoader only."
        )
    return loader
