"""A workload with a rung of the memory ladder applied, to be traced like any other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

from brim.planning.rungs import AUTOCAST, AUTOCAST_FLOAT16, CHECKPOINTING, CHUNKED, FUSED, NUM_CHUNKS, RungKind
from brim.tracing.checkpointing import checkpoint_blocks
from brim.tracing.faking import parts_of
from brim.workload import Workload

_OPTIMIZER_ZERO_GRAD = torch.optim.Optimizer.zero_grad
_MODULE_ZERO_GRAD = nn.Module.zero_grad
_AfterBuild = Callable[["Variant", Workload], None]
_DuringStep = Callable[["Variant", Workload], AbstractContextManager[None]]


@dataclass(slots=True, kw_only=True)
class Variant:
    """A workload that builds and steps with a rung applied.

    Attributes:
        workload_class: What to trace.
        lines: What to add to the job, known once it was built; None for what the rung says in general.
        obstacle: Why the rung does not apply, known once it was traced; None where it does.
        num_trained: Parameters that get gradients, known once it was built.
        trained_bytes: Their bytes.
    """

    workload_class: type[Workload]
    lines: str | None = None
    obstacle: str | None = None
    num_trained: int = 0
    trained_bytes: int = 0


def with_rung(kind: RungKind, workload_class: type[Workload]) -> Variant:
    """Return the workload with a rung applied."""
    return _variant(workload_class, *_RUNGS[kind])


def with_gradients_held(workload_class: type[Workload]) -> Variant:
    """Return the workload as it is while it accumulates: gradients stay from one microbatch to the next."""
    return _variant(workload_class, _leave_alone, _gradients_held)


def _variant(workload_class: type[Workload], after_build: _AfterBuild, during_step: _DuringStep) -> Variant:
    class Changed(workload_class):  # type: ignore[misc, valid-type]
        def build(self) -> None:
            super().build()
            trained = {id(each): each for model in _models(self).values() for each in model.parameters()}
            trained = {key: each for key, each in trained.items() if each.requires_grad}
            variant.num_trained = sum(each.numel() for each in trained.values())
            variant.trained_bytes = sum(each.numel() * each.element_size() for each in trained.values())
            after_build(variant, self)

        def step(self, batch: Any) -> None:
            with during_step(variant, self):
                super().step(batch)

    Changed.__name__ = Changed.__qualname__ = workload_class.__name__
    variant = Variant(workload_class=Changed)
    return variant


def _leave_alone(variant: Variant, workload: Workload) -> None:
    pass


def _as_it_is(variant: Variant, workload: Workload) -> AbstractContextManager[None]:
    return nullcontext()


def _fuse(variant: Variant, workload: Workload) -> None:
    """Switch optimizers to their fused form where they have one."""
    found = [part for value in vars(workload).values() for part in parts_of(value)]
    groups = [group for part in found if isinstance(part, torch.optim.Optimizer) for group in part.param_groups]
    able = [group for group in groups if "fused" in group]
    for group in able:
        group["fused"], group["foreach"] = True, False
    if not able:
        variant.obstacle = "no optimizer here has a fused form"


@contextmanager
def _gradients_dropped(variant: Variant, workload: Workload) -> Iterator[None]:
    with _zero_grad(set_to_none=True):
        yield


@contextmanager
def _gradients_held(variant: Variant, workload: Workload) -> Iterator[None]:
    with _zero_grad(set_to_none=False):
        yield


@contextmanager
def _zero_grad(*, set_to_none: bool) -> Iterator[None]:
    """Let every `zero_grad` do the same, whatever it is told; of two such blocks the inner one decides."""

    def of_optimizer(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        _OPTIMIZER_ZERO_GRAD(self, set_to_none=set_to_none)

    def of_module(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        _MODULE_ZERO_GRAD(self, set_to_none=set_to_none)

    with (
        mock.patch.object(torch.optim.Optimizer, "zero_grad", of_optimizer),
        mock.patch.object(nn.Module, "zero_grad", of_module),
    ):
        yield


def _autocast(dtype: torch.dtype) -> _DuringStep:
    @contextmanager
    def during_step(variant: Variant, workload: Workload) -> Iterator[None]:
        """Run the forward pass and the loss under autocast and the backward pass outside, as torch advises."""
        backward = torch.autograd.backward

        def outside(*args: Any, **kwargs: Any) -> None:
            torch.clear_autocast_cache()  # as at the end of a block around the forward pass alone
            with torch.autocast("cuda", enabled=False):
                backward(*args, **kwargs)

        with mock.patch.object(torch.autograd, "backward", outside), torch.autocast("cuda", dtype=dtype):
            yield

    return during_step


@contextmanager
def _chunked(variant: Variant, workload: Workload) -> Iterator[None]:
    """Show the output layer and the loss one chunk of the tokens: what is held while chunks come one after another."""
    modules = [module for model in _models(workload).values() for module in model.modules()]
    vocabularies = {module.num_embeddings for module in modules if isinstance(module, nn.Embedding)}
    is_chunked = False
    forward, cross_entropy = nn.Linear.forward, F.cross_entropy

    def forward_part(self: nn.Linear, tokens: torch.Tensor) -> torch.Tensor:
        nonlocal is_chunked
        if self.out_features in vocabularies and tokens.dim() > 1:
            is_chunked = True
            tokens = tokens.narrow(-2, 0, -(-tokens.shape[-2] // NUM_CHUNKS))
        return forward(self, tokens)

    def loss_of_part(logits: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        # Tokens are in the last dimension of the labels, and behind the classes in that of the logits.
        num_tokens = logits.shape[0] if logits.dim() == 2 else logits.shape[-1]
        return cross_entropy(logits, target[..., :num_tokens], *args, **kwargs)

    with (
        mock.patch.object(nn.Linear, "forward", forward_part),
        mock.patch.object(F, "cross_entropy", loss_of_part),
    ):
        yield
    if not is_chunked:
        variant.obstacle = "no output layer over a vocabulary here"


def _checkpoint(variant: Variant, workload: Workload) -> None:
    lines = [checkpoint_blocks(name, model) for name, model in _models(workload).items()]
    variant.lines = "\n".join(line for line in lines if line) or None
    if variant.lines is None:
        variant.obstacle = "no switch for it and no repeated blocks here"


def _models(workload: Workload) -> dict[str, nn.Module]:
    """Return the modules that a workload holds, by the name of the attribute."""
    return {
        name: part for name, value in vars(workload).items() for part in parts_of(value) if isinstance(part, nn.Module)
    }


_RUNGS: dict[RungKind, tuple[_AfterBuild, _DuringStep]] = {
    FUSED: (_fuse, _gradients_dropped),
    AUTOCAST: (_leave_alone, _autocast(torch.bfloat16)),
    AUTOCAST_FLOAT16: (_leave_alone, _autocast(torch.float16)),
    CHUNKED: (_leave_alone, _chunked),
    CHECKPOINTING: (_checkpoint, _as_it_is),
}
