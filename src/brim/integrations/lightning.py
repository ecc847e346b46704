"""A Lightning callback in the place of `BatchSizeFinder`: the largest batch that fits, for each stage, also for DDP.

    trainer = Trainer(callbacks=[BatchSizeCallback()], devices=2, strategy="ddp")
    trainer.fit(module)  # module.batch_size and the trainer's accumulate_grad_batches are set before the data is loaded

Every probe is a trainer of its own that really fits, validates, tests or predicts for a few steps, on the longest
sample of the stage's data.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from brim.devices import Device, resolve
from brim.errors import InputError, NothingFitsError
from brim.extras import needed, require
from brim.finding.in_job import JobSearch, Ranks
from brim.finding.observer import LogObserver
from brim.findings import Finding
from brim.integrations.even_plans import among_divisors, arithmetic, even_share, split_evenly
from brim.integrations.lightning_probes import (
    AT_LEAST,
    check_library,
    ddp_buckets,
    probe_trainer,
    quiet,
    samples_per_rank,
    stage_loader,
    train_loader,
)
from brim.integrations.samples import Repeated, longest_sample, num_elements
from brim.integrations.telling import identity, job_logger
from brim.planning import BatchPlan
from brim.probing.loop import LoopProber
from brim.searching import Bounds, Strategy

with needed("lightning", AT_LEAST):
    import lightning.pytorch as pl

# How far above the batch it has is looked for more, where no effective batch is to be kept.
GROWTH = 64


class BatchSizeCallback(pl.Callback):
    """Sets the batch size of a module or its datamodule to the largest that fits, when a stage starts.

    What `fit` gets stays. `validate`, `test` and `predict` each get a size of their own, which is taken back at their
    end, so that training goes on with its own.

    Args:
        batch_arg_name: The attribute that the module or its datamodule makes its loader with.
        effective: Samples per optimizer step of `fit` over all ranks, kept exact by accumulation; None to change no
            accumulation and look for the largest batch.
        cap: The largest batch to try; None for 64 times what it is now. No batch is tried that is larger than a rank's
            samples.
        memory: What the process may have in all, e.g. `"8GiB"`; None for what is free on the device.
        fill: The share of `memory` that the peak may use.
        steps: Optimizer steps in each probe, or batches of an evaluation.
        cache: Whether to use and extend the history of findings. A hit costs one confirming probe.

    Attributes:
        finding: What was found last.
        findings: What was found, by stage: `fit`, `validate`, `test`, `predict`.
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
        self._before: list[tuple[Any, str, Any]] = []
        self.finding: Finding | None = None
        self.findings: dict[str, Finding] = {}
        self.plan: BatchPlan | None = None

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find the batch size and set it; the trainer loads its data after this."""
        owner = self._owner(trainer, pl_module)
        ranks = Ranks()
        finding = self._find("fit", trainer, pl_module, owner, ranks)
        self._set(owner, self._name, finding.microbatch)
        if self._effective is not None:
            self.plan = split_evenly(self._effective, finding, ranks=ranks.count)
            self._set(trainer, "accumulate_grad_batches", self.plan.accumulation)
            job_logger(ranks.rank).info("training with %s", arithmetic(self.plan))
        else:
            job_logger(ranks.rank).info("training with %s %d", self._name, finding.microbatch)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse data that was not loaded with the batch size; from here on what was set stays."""
        self._check_loader("fit", trainer, self._owner(trainer, pl_module))
        self._before.clear()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find the batch size of `trainer.validate`; a validation inside `fit` is left alone."""
        if trainer.state.fn == "validate":
            self._evaluate("validate", trainer, pl_module)

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find the batch size of `trainer.test`."""
        self._evaluate("test", trainer, pl_module)

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find the batch size of `trainer.predict`."""
        self._evaluate("predict", trainer, pl_module)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Take an evaluation's batch size back."""
        self._take_back()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Take back what was set for an evaluation, or for a fit that has not begun."""
        self._take_back()

    def _evaluate(self, stage: str, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Find a stage's batch size, and load its data anew, which the trainer has loaded before."""
        owner = self._owner(trainer, pl_module)
        ranks = Ranks()
        self._check_loader(stage, trainer, owner)
        finding = self._find(stage, trainer, pl_module, owner, ranks)
        self._set(owner, self._name, finding.microbatch)
        loop = getattr(trainer, f"{stage}_loop")
        loop.setup_data()
        loop.reset()
        self._check_loader(stage, trainer, owner)
        job_logger(ranks.rank).info("%s with %s %d", stage, self._name, finding.microbatch)

    def _set(self, owner: Any, name: str, value: Any) -> None:
        self._before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def _take_back(self) -> None:
        while self._before:
            owner, name, value = self._before.pop()
            setattr(owner, name, value)

    def _check_loader(self, stage: str, trainer: pl.Trainer, owner: Any) -> None:
        """Refuse a loader whose batch size is not the attribute's, as one that was handed to the trainer."""
        loader, wanted = stage_loader(stage, trainer), getattr(owner, self._name)
        size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
        if size != wanted:
            raise InputError(
                f"The loader of {stage} has batches of {size}, and {self._name} is {wanted}. Make the loader in the "
                f"module or its datamodule, with batch_size=self.{self._name}, and hand none to trainer.{stage}."
            )

    def _find(
        self, stage: str, trainer: pl.Trainer, pl_module: pl.LightningModule, owner: Any, ranks: Ranks
    ) -> Finding:
        logger = job_logger(ranks.rank)
        logger.info("%s: looking for the largest %s from %d on", stage, self._name, getattr(owner, self._name))
        if stage == "fit":
            search = self._fit_search(trainer, pl_module, owner, ranks)
        else:
            search = self._evaluation_search(stage, trainer, pl_module, owner, ranks)
        self.finding = search.run()
        if self.finding.microbatch is None:
            raise NothingFitsError(f"{self.finding.note}. `brim plan --ladder` shows what saves how much.")
        self.findings[stage] = self.finding
        return self.finding

    def _owner(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> Any:
        check_library(trainer, pl_module)
        for owner in (getattr(trainer, "datamodule", None), pl_module):
            if owner is not None and isinstance(getattr(owner, self._name, None), int):
                return owner
        raise InputError(
            f"Neither the module nor its datamodule has a whole number {self._name!r}. Set it in __init__ and make the "
            f"DataLoader with it: DataLoader(data, batch_size=self.{self._name})."
        )

    def _fit_search(self, trainer: pl.Trainer, pl_module: pl.LightningModule, owner: Any, ranks: Ranks) -> JobSearch:
        device = self._device(trainer)
        loader = train_loader(owner, self._name)
        sample = longest_sample(loader.dataset)
        # A batch of more than there is would leave none where the loader drops the last one.
        most = samples_per_rank(loader, ranks=ranks.count)
        accumulation = trainer.accumulate_grad_batches
        strategy = share = None
        now = getattr(owner, self._name)
        if self._effective is None:
            bounds = self._bounds(now, most)
        else:
            share = even_share(self._effective, ranks=ranks.count)
            bounds, strategy = among_divisors(share, start=now, most=most, device=device)

        def loop(size: int) -> None:
            held = 2 if (size < share if share else accumulation > 1) else 1
            data = Repeated(sample, size * held * self._steps)
            buckets = ddp_buckets(pl_module) if ranks.count > 1 else []  # noqa: F841  held while the probe runs
            with quiet():
                probe = probe_trainer(trainer, steps=self._steps, accumulation=held)
                probe.fit(pl_module, DataLoader(data, batch_size=size, collate_fn=loader.collate_fn))

        return self._search(
            trainer, pl_module, LoopProber(loop, device), bounds, device, ranks, strategy=strategy,
            settings={"elements": num_elements(sample), "share": share},
        )  # fmt: skip

    def _evaluation_search(
        self, stage: str, trainer: pl.Trainer, pl_module: pl.LightningModule, owner: Any, ranks: Ranks
    ) -> JobSearch:
        device = self._device(trainer)
        loader = stage_loader(stage, trainer)
        sample = longest_sample(loader.dataset)
        bounds = self._bounds(getattr(owner, self._name), samples_per_rank(loader, ranks=ranks.count))

        def loop(size: int) -> None:
            # One batch more than is looked at: in it the probe is ended, before the module sums anything up.
            data = Repeated(sample, size * (self._steps + 1))
            batches = DataLoader(data, batch_size=size, collate_fn=loader.collate_fn)
            with quiet():
                probe = probe_trainer(trainer, steps=self._steps, evaluates=True)
                getattr(probe, stage)(pl_module, batches)

        return self._search(
            trainer, pl_module, LoopProber(loop, device, kind="eval"), bounds, device, ranks, strategy=None,
            settings={"elements": num_elements(sample), "stage": stage},
        )  # fmt: skip

    def _bounds(self, now: int, most: int | None) -> Bounds:
        cap = GROWTH * now if self._cap is None else self._cap
        cap = cap if most is None else min(cap, most)
        return Bounds(cap=cap, start=min(now, cap))

    def _device(self, trainer: pl.Trainer) -> Device:
        return resolve(str(trainer.strategy.root_device), memory=self._memory, fill=self._fill, in_process=True)

    def _search(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, prober: LoopProber, bounds: Bounds, device: Device,
        ranks: Ranks, *, strategy: Strategy | None, settings: dict[str, Any],
    ) -> JobSearch:  # fmt: skip
        label, sources = identity(type(pl_module))
        settings |= {"precision": str(trainer.precision)}
        settings["parameters"] = sum(parameter.numel() for parameter in pl_module.parameters())
        return JobSearch(
            prober=prober, label=label, device=device, bounds=bounds, strategy=strategy,
            observer=LogObserver(job_logger(ranks.rank)), steps=self._steps, settings=settings, sources=sources,
            cache=self._cache, ranks=ranks,
        )  # fmt: skip
