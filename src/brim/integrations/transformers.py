"""The batch sizes of a transformers `Trainer`: train, eval and generation apart, the effective batch kept.

    def make_trainer(args):
        return Trainer(model=model, args=args, train_dataset=data)

    fit_arguments(make_trainer, args)  # fills per_device_train_batch_size, gradient_accumulation_steps, …
    make_trainer(args).train()

Every probe is a new trainer that really trains a few steps, or evaluates, on the longest sample of its dataset.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from brim.devices import Device, resolve
from brim.errors import InputError, NothingFitsError
from brim.extras import needed, require
from brim.finding.in_job import JobSearch, Ranks
from brim.finding.observer import LogObserver
from brim.findings import Finding, Verdict
from brim.integrations.even_plans import among_divisors, arithmetic, even_share, split_evenly
from brim.integrations.samples import Repeated, longest_sample, num_elements
from brim.integrations.telling import identity, job_logger
from brim.integrations.trainer_probes import gather_alone
from brim.planning import BatchPlan
from brim.planning.batch_plan import check_count
from brim.probing.loop import LoopProber
from brim.probing.verdicts import classify
from brim.searching import Bounds
from brim.searching.among import divisors

AT_LEAST = "5.0"
# How far above the size it has an evaluation's batch is looked for, where its dataset has no length.
GROWTH = 8
# A probe reports to nobody, saves nothing, and its ranks wait for each other as little as they can.
_QUIET: Mapping[str, Any] = {
    "report_to": [],
    "logging_strategy": "no",
    "logging_first_step": False,
    "save_strategy": "no",
    "eval_strategy": "no",
    "eval_on_start": False,
    "load_best_model_at_end": False,
    "push_to_hub": False,
    "disable_tqdm": True,
    "auto_find_batch_size": False,
    "average_tokens_across_devices": False,
    "dataloader_num_workers": 0,
}
MakeTrainer = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What was found for a trainer; None for what it does not do.

    Attributes:
        plan: The effective batch as it is now split.
        train: The finding of the training microbatch.
        eval: The finding of the evaluation's batch; with `predict_with_generate` it was found by generating.
        generate: The finding of the batch that `model.generate` can take.
    """

    plan: BatchPlan | None = None
    train: Finding | None = None
    eval: Finding | None = None
    generate: Finding | None = None


def fit_arguments(
    make_trainer: MakeTrainer,
    args: Any,
    *,
    effective: int | None = None,
    generation: Mapping[str, Any] | None = None,
    device: str = "auto",
    memory: str | int | None = None,
    fill: float = 0.9,
    steps: int = 3,
    cache: bool = True,
) -> Fitted:
    """Find the largest batches that fit and fill them into `TrainingArguments`: microbatches, accumulation, evaluation.

    Args:
        make_trainer: Returns a new `Trainer` for the arguments it is given.
        args: The arguments to fill.
        effective: Samples per optimizer step over all ranks; None for what `args` amount to now.
        generation: Arguments of `model.generate`, e.g. `{"max_new_tokens": 64}`, to find its batch as well, for samples
            of `eval_dataset`, or of `train_dataset` where there is no other.
        device: `auto`, `cpu` or `cuda:N`.
        memory: What the process may have in all, e.g. `"8GiB"`; None for what is free on the device.
        fill: The share of `memory` that the peak may use.
        steps: Optimizer steps in each probe.
        cache: Whether to use and extend the history of findings.

    Raises:
        InputError: A value cannot be used, transformers is too old, or the trainer shards its model.
        NothingFitsError: Not even one sample fits.
    """
    require("transformers", AT_LEAST)
    if effective is not None:
        check_count("effective", effective)
    trainer = make_trainer(args)
    _check(trainer)
    ranks = Ranks()
    found_device = resolve(device, memory=memory, fill=fill, in_process=True)
    job = _Job(make_trainer, args, found_device, steps, cache, ranks)
    plan = train = evaluation = generate = None
    if trainer.train_dataset is not None:
        if effective is None:
            effective = args.per_device_train_batch_size * args.gradient_accumulation_steps * job.num_devices
        train = job.find_train(trainer, even_share(effective, ranks=job.num_devices))
        plan = split_evenly(effective, train, ranks=job.num_devices)
        args.per_device_train_batch_size, args.gradient_accumulation_steps = plan.microbatch, plan.accumulation
        job.tell(f"training with {arithmetic(plan)}")
    if trainer.eval_dataset is not None:
        evaluation = job.find_eval(trainer)
        args.per_device_eval_batch_size = evaluation.microbatch
        job.tell(f"evaluating with {evaluation.microbatch}")
    if generation is not None:
        generate = job.find_generate(trainer, generation)
        job.tell(f"generating with {generate.microbatch}")
    return Fitted(plan=plan, train=train, eval=evaluation, generate=generate)


def train(make_trainer: MakeTrainer, args: Any, **train_arguments: Any) -> Any:
    """Train; after an OOM start again, from the first weights, with a smaller microbatch and the same effective batch.

    Args:
        make_trainer: Returns a new `Trainer` for the arguments it is given.
        args: The arguments; their microbatch and accumulation are changed where they do not fit.
        train_arguments: What `Trainer.train` is given.

    Returns:
        The trainer that came to its end.
    """
    require("transformers", AT_LEAST)
    ranks, share = Ranks(), args.per_device_train_batch_size * args.gradient_accumulation_steps
    first_weights: dict[str, Any] | None = None
    while True:
        trainer = make_trainer(args)
        if first_weights is None:
            first_weights = {name: value.to("cpu", copy=True) for name, value in trainer.model.state_dict().items()}
        trainer.model.load_state_dict(first_weights)
        verdict, error = Verdict.FITS, None
        try:
            trainer.train(**train_arguments)
        except Exception as caught:  # noqa: BLE001  raised again below, unless it means memory
            verdict, error = classify(caught, nearly_full=False), caught
        verdicts = set(ranks.gather(verdict))
        if verdicts == {Verdict.FITS}:
            return trainer
        smaller = [size for size in divisors(share) if size < args.per_device_train_batch_size]
        if Verdict.ERROR in verdicts or not smaller:
            raise error or RuntimeError("Another rank failed; its own output says why.")
        job_logger(ranks.rank).warning(
            "per_device_train_batch_size %d ran out of memory; starting again with %d × %d, the same effective batch",
            args.per_device_train_batch_size, smaller[-1], share // smaller[-1],
        )  # fmt: skip
        args.per_device_train_batch_size, args.gradient_accumulation_steps = smaller[-1], share // smaller[-1]
        del trainer, error


class _Job:
    """The searches for one trainer.

    Attributes:
        num_devices: Over how many devices a step's samples go: those of all ranks, or those of the one process that the
            trainer spreads over all GPUs it sees.
    """

    def __init__(
        self, make_trainer: MakeTrainer, args: Any, device: Device, steps: int, cache: bool, ranks: Ranks
    ) -> None:
        self._make_trainer = make_trainer
        self._args = args
        self._device = device
        self._steps = steps
        self._cache = cache
        self._ranks = ranks
        self.num_devices = ranks.count * max(1, args.n_gpu)
        self._logger = job_logger(ranks.rank)
        self.tell = self._logger.info

    def find_train(self, trainer: Any, share: int) -> Finding:
        """Find the largest microbatch that divides the share of a rank; gradients are held where it accumulates."""
        self.tell("looking for the training microbatch")
        sample = longest_sample(trainer.train_dataset)

        def loop(size: int) -> None:
            accumulation = 1 if size == share else 2
            probe = self._trainer(
                per_device_train_batch_size=size, gradient_accumulation_steps=accumulation, max_steps=self._steps
            )
            probe.train_dataset = Repeated(sample, size * accumulation * self._steps * self.num_devices)
            probe.train()

        bounds, strategy = among_divisors(share, start=self._args.per_device_train_batch_size, device=self._device)
        settings = {**self._settings(trainer, sample), "share": share}
        return self._find(LoopProber(loop, self._device), bounds, settings, strategy=strategy)

    def find_eval(self, trainer: Any) -> Finding:
        """Find the largest batch of an evaluation, beside the optimizer's state where there is training."""
        dataset = _one(trainer.eval_dataset)
        sample = longest_sample(dataset)
        is_generating = getattr(self._args, "predict_with_generate", False) and trainer.compute_metrics is not None
        self.tell("looking for the evaluation's batch" + (", by generating" if is_generating else ""))

        def loop(size: int) -> None:
            # A step that makes the optimizer's state; of two samples, since a batch norm refuses one.
            few = min(2, self._args.per_device_train_batch_size)
            probe = self._trainer(per_device_train_batch_size=few, per_device_eval_batch_size=size, max_steps=1)
            if probe.train_dataset is not None:
                one = longest_sample(probe.train_dataset, most=1)
                accumulation = probe.args.gradient_accumulation_steps
                probe.train_dataset = Repeated(one, few * accumulation * self.num_devices)
                probe.train()
            gather_alone(probe, self._ranks.count)
            probe.evaluate(Repeated(sample, size * self._steps * self.num_devices))

        return self._find(
            LoopProber(loop, self._device, kind="generate" if is_generating else "eval", ends_itself=True),
            self._eval_bounds(dataset),
            {**self._settings(trainer, sample), "trains": trainer.train_dataset is not None},
        )

    def find_generate(self, trainer: Any, generation: Mapping[str, Any]) -> Finding:
        """Find the largest batch of `model.generate`."""
        source = "train_dataset" if trainer.eval_dataset is None else "eval_dataset"
        self.tell(f"looking for the batch of model.generate, with the longest sample of {source}")
        dataset = _one(getattr(trainer, source))
        sample = longest_sample(dataset)

        def loop(size: int) -> None:
            probe = self._trainer(per_device_eval_batch_size=size)
            for batch in probe.get_eval_dataloader(Repeated(sample, size * self._ranks.count)):
                inputs = {
                    name: batch[name] for name in ("input_ids", "attention_mask", "pixel_values") if name in batch
                }
                probe.model.eval().to(probe.args.device).generate(**inputs, **generation)

        return self._find(
            LoopProber(loop, self._device, kind="generate", ends_itself=True),
            self._eval_bounds(dataset),
            {**self._settings(trainer, sample), "generation": repr(sorted(generation.items()))},
        )

    def _find(self, prober: LoopProber, bounds: Bounds, settings: Mapping[str, Any], **options: Any) -> Finding:
        label, sources = identity(self._make_trainer)
        search = JobSearch(
            prober=prober, label=label, device=self._device, bounds=bounds, observer=LogObserver(self._logger),
            steps=self._steps, settings=settings, sources=sources, cache=self._cache, ranks=self._ranks, **options,
        )  # fmt: skip
        finding = search.run()
        if finding.microbatch is None:
            raise NothingFitsError(f"{prober.kind}: {finding.note}. `brim plan --ladder` shows what saves how much.")
        return finding

    def _eval_bounds(self, dataset: Any) -> Bounds:
        now = self._args.per_device_eval_batch_size
        cap = max(1, len(dataset) // self.num_devices) if hasattr(dataset, "__len__") else GROWTH * now
        return Bounds(cap=cap, start=min(now, cap))

    def _settings(self, trainer: Any, sample: Any) -> dict[str, Any]:
        args = self._args
        return {
            "model": type(trainer.model).__name__,
            "parameters": sum(p.numel() * p.element_size() for p in trainer.model.parameters()),
            "elements": num_elements(sample),
            "arguments": [str(args.optim), args.bf16, args.fp16, args.gradient_checkpointing, args.torch_compile],
        }

    def _trainer(self, **settings: Any) -> Any:
        """Make a trainer for a probe, without the callbacks and reports of the real one."""
        with needed("transformers", AT_LEAST):
            from transformers import DefaultFlowCallback

        args = copy.copy(self._args)
        for name, value in {**_QUIET, **settings}.items():
            setattr(args, name, value)
        trainer = self._make_trainer(args)
        for callback in list(trainer.callback_handler.callbacks):
            if not isinstance(callback, DefaultFlowCallback):
                trainer.remove_callback(callback)
        return trainer


def _check(trainer: Any) -> None:
    for name, what in (("is_fsdp_enabled", "FSDP"), ("is_deepspeed_enabled", "DeepSpeed")):
        if getattr(trainer, name, False):
            raise InputError(f"{what} shards the model over the ranks, and its batch cannot be probed rank by rank.")
    if trainer.train_dataset is None and trainer.eval_dataset is None:
        raise InputError("The trainer has neither train_dataset nor eval_dataset: there is nothing to probe with.")


def _one(dataset: Any) -> Any:
    """Return the dataset, or that with the longest sample where there are several by name."""
    if not isinstance(dataset, dict):
        return dataset
    return max(dataset.values(), key=lambda each: num_elements(longest_sample(each)))
