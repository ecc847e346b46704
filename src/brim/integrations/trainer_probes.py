"""Probes of a transformers `Trainer`: what it does to a model is undone, and its evaluations wait for no other rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def gather_alone(trainer: Any, num_ranks: int) -> None:
    """Have an evaluation take the memory that gathering takes, without the other ranks: one may run out of its own."""
    from accelerate.utils import recursively_apply

    def gather(data: Any, *_: Any, **__: Any) -> Any:
        return recursively_apply(lambda tensor: torch.cat([torch.atleast_1d(tensor)] * num_ranks), data)

    if num_ranks > 1:
        accelerator = trainer.accelerator
        accelerator.gather = accelerator.gather_for_metrics = trainer.gather_function = gather
        accelerator.pad_across_processes = lambda data, *_, **__: data


@contextmanager
def model_as_before(model: Any) -> Iterator[None]:
    """Undo what a trainer does to the model besides training it: wrap its `forward`, switch checkpointing on."""
    attributes, was_checkpointing = dict(vars(model)), getattr(model, "is_gradient_checkpointing", False)
    try:
        yield
    finally:
        vars(model).clear()
        vars(model).update(attributes)
        if getattr(model, "is_gradient_checkpointing", False) and not was_checkpointing:
            model.gradient_checkpointing_disable()
