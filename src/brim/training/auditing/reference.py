"""The gradient that a window should have, computed where the loop is about to step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from brim.errors import InputError
from brim.training.auditing.causes import Weighting
from brim.training.splitting import count_samples, merge

# Gradients of the same forward pass that are further apart than this, as a share, do not differ by rounding alone.
_RANDOM = 1e-3

LossFn = Callable[[Any], Any]
Gradient = list[torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """What one backward pass of the loop was about.

    Attributes:
        batch: What was drawn for it.
        random_state: The random generators when its forward pass began.
    """

    batch: Any
    random_state: RandomState


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The gradient of a window, weighted in each way that loops do.

    Attributes:
        gradients: The window's gradient for each weighting, in the order of the parameters.
        items: How many items the window has over all ranks.
        one_pass_difference: How far the window's gradient is from that of one forward pass, on this rank, or None.
        is_random: Whether the same forward pass gives another gradient each time.
        has_batch_norm: Whether a BatchNorm takes its statistics from the batch.
        problem: Why no single forward pass could be run, or None.
    """

    gradients: dict[Weighting, Gradient]
    items: float
    one_pass_difference: float | None
    is_random: bool
    has_batch_norm: bool
    problem: str | None


class RandomState:
    """The states of torch's random generators on the CPU and the current device."""

    def __init__(self) -> None:
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None

    def restore(self) -> None:
        """Put the generators back."""
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda)


class Referee:
    """Computes references for one model and one loss, and leaves no trace of it.

    Attributes:
        num_ranks: Over how many ranks a window extends.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[torch.Tensor], loss_fn: LossFn) -> None:
        self._model = model
        self._parameters = parameters
        self._loss_fn = loss_fn
        self._replicas = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
        self.num_ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1

    def take(self, microbatches: Sequence[Microbatch]) -> Reference:
        """Return the reference of a window at the weights as they are now."""
        with self._unchanged():
            summed, means, items = self._accumulate(microbatches)
            one_pass, problem = self._run_at_once(microbatches) if len(microbatches) > 1 else (None, None)
            here = [total / items for total in summed]
            return Reference(
                gradients=self._over_ranks(summed, means, items, len(microbatches)),
                items=self._sum_over_ranks(torch.tensor(items, dtype=torch.float64)).item(),
                one_pass_difference=None if one_pass is None else distance(here, one_pass),
                is_random=self._is_random(microbatches[0]),
                has_batch_norm=any(
                    isinstance(module, _BatchNorm) and module.training for module in self._model.modules()
                ),
                problem=problem,
            )

    def _accumulate(self, microbatches: Sequence[Microbatch]) -> tuple[Gradient, Gradient, float]:
        """Return the sum of all items' gradients, the sum of the microbatches' means, and the number of items."""
        summed = [torch.zeros_like(parameter) for parameter in self._parameters]
        means = [torch.zeros_like(parameter) for parameter in self._parameters]
        total = 0.0
        for microbatch in microbatches:
            microbatch.random_state.restore()
            gradient, items = self._differentiate(microbatch.batch)
            total += items
            torch._foreach_add_(summed, gradient)
            if items:
                torch._foreach_add_(means, gradient, alpha=1 / items)
        if not total:
            raise InputError("A window of the loop holds no items. Audit it with batches that do.")
        return summed, means, total

    def _differentiate(self, batch: Any) -> tuple[Gradient, float]:
        """Return the gradient of the sum of a batch's losses, and how many items it has."""
        result = self._loss_fn(batch)
        loss_sum, items = result if isinstance(result, tuple) else (result, count_samples(batch))
        found = torch.autograd.grad(loss_sum, self._parameters, allow_unused=True)
        gradient = [
            torch.zeros_like(parameter) if part is None else part
            for part, parameter in zip(found, self._parameters, strict=True)
        ]
        return gradient, float(items)

    def _run_at_once(self, microbatches: Sequence[Microbatch]) -> tuple[Gradient | None, str | None]:
        """Return the gradient of one forward pass over the whole window, or why there is none."""
        try:
            batch = merge([microbatch.batch for microbatch in microbatches])
        except InputError as error:
            return None, str(error)
        gradient, items = self._differentiate(batch)
        return [part / items for part in gradient], None

    def _is_random(self, microbatch: Microbatch) -> bool:
        one, other = (self._differentiate(microbatch.batch)[0] for _ in range(2))
        return distance(one, other) > _RANDOM

    def _over_ranks(
        self, summed: Gradient, means: Gradient, items: float, num_microbatches: int
    ) -> dict[Weighting, Gradient]:
        by_rank = [self._sum_over_ranks(part / items) / self.num_ranks for part in summed]
        by_microbatch = [self._sum_over_ranks(part / num_microbatches) / self.num_ranks for part in means]
        all_items = self._sum_over_ranks(torch.tensor(items, dtype=torch.float64)).item()
        by_items = [self._sum_over_ranks(part) / all_items for part in summed]
        found = {Weighting.ITEMS: by_items, Weighting.MICROBATCHES: by_microbatch}
        return {**found, Weighting.RANKS: by_rank} if self.num_ranks > 1 else found

    def _sum_over_ranks(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.num_ranks > 1:
            tensor = tensor.to(self._parameters[0].device, copy=True)
            dist.all_reduce(tensor)
        return tensor

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Put buffers and random generators back, and keep DDP from expecting a backward pass of its own."""
        state = RandomState()
        buffers = [(buffer, buffer.clone()) for buffer in self._model.buffers()]
        with ExitStack() as muted, torch.enable_grad():
            for replica in self._replicas:
                muted.enter_context(replica.no_sync())
            try:
                yield
            finally:
                with torch.no_grad():
                    for buffer, contents in buffers:
                        buffer.copy_(contents)
                state.restore()


def distance(gradient: Sequence[torch.Tensor], truth: Sequence[torch.Tensor]) -> float:
    """Return how far two gradients are apart, as a share of the second."""
    apart = sum(float((one - other).double().square().sum()) for one, other in zip(gradient, truth, strict=True))
    whole = sum(float(part.double().square().sum()) for part in truth)
    return float((apart / whole) ** 0.5) if whole else float(apart > 0)
