"""Probes of a transformers `Trainer`: their evaluations wait for no other rank."""

from __future__ import annotations

from typing import Any

import torch

from brim.extras import needed

# Of Accelerate, which transformers' `Trainer` is made on. Source: transformers 5.
AT_LEAST = "1.1"


def gather_alone(trainer: Any, num_ranks: int) -> None:
    """Have an evaluation take the memory that gathering takes, without the other ranks: one may run out of its own."""
    with needed("accelerate", AT_LEAST):
        from accelerate.utils import recursively_apply

    def gather(data: Any, *_: Any, **__: Any) -> Any:
        return recursively_apply(lambda tensor: torch.cat([torch.atleast_1d(tensor)] * num_ranks), data)

    if num_ranks > 1:
        accelerator = trainer.accelerator
        accelerator.gather = accelerator.gather_for_metrics = trainer.gather_function = gather
        accelerator.pad_across_processes = lambda data, *_, **__: data
