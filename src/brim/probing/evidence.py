"""Proof of work: what a step really did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook


@dataclass(slots=True)
class Evidence:
    """How often each kind of work was seen."""

    forward: int = 0
    backward: int = 0
    optimizer: int = 0

    def missing(self, kind: str) -> str | None:
        """Return what a step of this kind must do and did not, or None.

        >>> Evidence(forward=3).missing("train")
        'backward pass'
        """
        if kind == "train":
            if not self.backward:
                return "backward pass" if self.forward else "forward or backward pass"
            return None if self.optimizer else "optimizer step"
        return None if self.forward else "forward pass of a module"

    def to_dict(self) -> dict[str, int]:
        """Return the counts as plain data."""
        return {"forward": self.forward, "backward": self.backward, "optimizer": self.optimizer}


@contextmanager
def collect() -> Iterator[Evidence]:
    """Count outermost module calls, backward passes and optimizer steps of this process while active."""
    evidence = Evidence()
    depth = 0

    def enter(*_: Any) -> None:
        nonlocal depth
        evidence.forward += depth == 0
        depth += 1

    def leave(*_: Any) -> None:
        nonlocal depth
        depth -= 1

    def count_step(*_: Any) -> None:
        evidence.optimizer += 1

    def counted(run: Any) -> Any:
        def count_and_run(*args: Any, **kwargs: Any) -> Any:
            evidence.backward += 1
            return run(*args, **kwargs)

        return count_and_run

    handles = [
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
        register_optimizer_step_post_hook(count_step),
    ]
    # Tensor.backward looks both up here at every call.
    backward, grad = torch.autograd.backward, torch.autograd.grad
    torch.autograd.backward, torch.autograd.grad = counted(backward), counted(grad)
    try:
        yield evidence
    finally:
        torch.autograd.backward, torch.autograd.grad = backward, grad
        for handle in handles:
            handle.remove()


def wrong_size(batch: Any, size: int) -> str | None:
    """Return what is wrong with a batch whose tensors show that it does not hold `size` samples, or None.

    Samples lie along the first dimension, where a sample may be several rows (crops, views), or along the second
    where sequences come first. A batch without tensors cannot be judged.
    """
    shapes = [tuple(leaf.shape) for leaf in _tensors(batch) if leaf.ndim]
    if not shapes or any((shape[0] and shape[0] % size == 0) or shape[1:2] == (size,) for shape in shapes):
        return None
    listed = ", ".join(str(shape) for shape in shapes[:4])
    return f"batch({size}) returned tensors of shape {listed}: none holds {size} samples"


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    leaves, _ = torch.utils._pytree.tree_flatten(value)
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif hasattr(leaf, "items") and callable(leaf.items):
            yield from _tensors(dict(leaf.items()))
