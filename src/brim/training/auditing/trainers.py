"""Whose loop it is: a function, a transformers Trainer or a Lightning Trainer, each as something to run on a loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from brim.errors import InputError
from brim.training.auditing.reference import LossFn

# The label that transformers' losses leave out.
_IGNORED = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A loop with everything that its audit needs.

    Attributes:
        run: Trains on the loader that it is given.
        accumulation: Microbatches of a whole window, or None where the loop has to show it.
    """

    run: Callable[[Any], Any]
    model: nn.Module
    batches: list[Any]
    loss_fn: LossFn
    accumulation: int | None


def prepare(
    loop: Any, model: nn.Module | None, batches: Iterable[Any] | None, loss_fn: LossFn | None, accumulation: int | None
) -> Case:
    """Return the loop as a case, with what its trainer knows filled in."""
    run = loop
    if _is_trainer(loop, "transformers"):
        run = _runs_transformers(loop)
        model = loop.model if model is None else model
        batches = loop.get_train_dataloader() if batches is None else batches
        loss_fn = _loss_of_transformers(loop) if loss_fn is None else loss_fn
        accumulation = loop.args.gradient_accumulation_steps if accumulation is None else accumulation
    elif _is_trainer(loop, "lightning.pytorch") or _is_trainer(loop, "pytorch_lightning"):
        module = model

        def run(loader: Any) -> None:
            loop.fit(module, train_dataloaders=loader)

        accumulation = loop.accumulate_grad_batches if accumulation is None else accumulation
    elif not callable(loop):
        raise InputError(
            f"The loop is a {type(loop).__name__}. Pass a function that trains on the loader it is given, a "
            "transformers Trainer or a Lightning Trainer."
        )
    missing = [name for name, value in (("model", model), ("batches", batches), ("loss_fn", loss_fn)) if value is None]
    if model is None or batches is None or loss_fn is None:
        raise InputError(
            f"The audit needs {' and '.join(missing)}: audit(loop, model, batches, loss_fn), where loss_fn takes one "
            "of the batches and returns the sum of its losses and the number of its items."
        )
    return Case(run=run, model=model, batches=list(batches), loss_fn=loss_fn, accumulation=accumulation)


def _is_trainer(loop: Any, package: str) -> bool:
    """Return whether it is a Trainer of a package, which need not be there."""
    return any(
        cls.__name__ == "Trainer" and (cls.__module__ == package or cls.__module__.startswith(package + "."))
        for cls in type(loop).__mro__
    )


def _runs_transformers(trainer: Any) -> Callable[[Any], None]:
    def run(loader: Any) -> None:
        trainer.get_train_dataloader = lambda: loader
        try:
            trainer.train()
        finally:
            del trainer.get_train_dataloader

    return run


def _loss_of_transformers(trainer: Any) -> LossFn:
    """Return the Trainer's own loss of one batch, with its labels that are not ignored as items."""
    # Decoders predict the next token: their first label is the target of nothing.
    shifts = getattr(getattr(trainer.model, "loss_function", None), "__name__", "") == "ForCausalLMLoss"
    shifts = shifts and not getattr(trainer.model.config, "is_encoder_decoder", False)

    def loss_fn(batch: Any) -> tuple[torch.Tensor, int]:
        if "labels" not in batch:
            raise InputError("The Trainer's batches have no labels. Pass loss_fn, which takes one of them.")
        batch = {
            name: value.to(trainer.args.device) if isinstance(value, torch.Tensor) else value
            for name, value in batch.items()
        }
        labels = batch["labels"]
        labels = labels[..., 1:] if shifts and labels.ndim > 1 else labels
        items = int((labels != _IGNORED).sum())
        with trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(trainer.model, batch)
        return loss * items, items

    return loss_fn
