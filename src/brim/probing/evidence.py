"""Proof of work: what a step really did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

# What a training step may lack though it runs: it may come only every few steps.
UPDATE = "optimizer step"
# Which share of a batch's elements a module was given that got all of them in another shape: some may be cropped.
_SAME_ELEMENTS = (0.9, 1.1)


@dataclass(slots=True)
class Evidence:
    """How often each kind of work was seen, and how much data.

    Attributes:
        rows: What each outermost module was given in all, along the first dimension, by the module's identity; where
            that cannot be seen, the most that a module inside of it was given in each call.
        elements: What each of these whose arguments can be seen was given, in elements of its largest tensor.
        shapes: The shapes of what these were given, without the first dimension.
        is_hidden: Whether there were others.
    """

    forward: int = 0
    backward: int = 0
    optimizer: int = 0
    rows: Counter[int] = field(default_factory=Counter)
    elements: Counter[int] = field(default_factory=Counter)
    shapes: set[tuple[int, ...]] = field(default_factory=set)
    is_hidden: bool = False

    def samples(self, batch: Any, size: int, *, steps: int) -> int | None:
        """Return how many samples the modules saw over all steps; None where that cannot be told.

        Rows of what a batch's tensors look like are samples. A step may also pack or turn what it was given: then a
        module gets fewer rows and about as many elements as there are in the batch.
        """
        expected = steps * size
        most_rows, most_elements = max(self.rows.values(), default=0), max(self.elements.values(), default=0)
        if most_rows >= expected:
            return expected
        tensors = list(tensors_of(batch))
        num_elements = steps * max((tensor.numel() for tensor in tensors), default=0)
        if self.is_hidden or not num_elements:
            return None
        counted = [tuple(tensor.shape[1:]) for tensor in tensors if tensor.shape[:1] == (size,)]
        if not self.shapes.intersection(counted):
            share = most_elements / num_elements
            if _SAME_ELEMENTS[0] <= share:
                return expected if share <= _SAME_ELEMENTS[1] else None
        return most_rows

    def missing(self, kind: str) -> str | None:
        """Return what a step of this kind must do and did not, or None.

        >>> Evidence(forward=3).missing("train")
        'backward pass'
        """
        if kind == "train":
            if not self.backward:
                return "backward pass" if self.forward else "forward or backward pass"
            return None if self.optimizer else UPDATE
        return None if self.forward else "forward pass of a module"

    def to_dict(self) -> dict[str, int]:
        """Return the counts as plain data."""
        return {"forward": self.forward, "backward": self.backward, "optimizer": self.optimizer}


@contextmanager
def collect() -> Iterator[Evidence]:
    """Count outermost module calls, backward passes and optimizer steps of this process while active."""
    evidence = Evidence()
    depth = 0
    # How many of the modules that run now, from the outermost on, were given nothing that can be seen, and what of the
    # outermost's call was seen inside.
    num_hidden = most_rows = 0

    def enter(module: torch.nn.Module, args: Any) -> None:
        nonlocal depth, num_hidden, most_rows
        if depth == 0:
            evidence.forward += 1
            most_rows = 0
        if depth == num_hidden:
            given = [tensor for tensor in tensors_of(args) if tensor.ndim]
            if given:
                most_rows = max(most_rows, *(tensor.shape[0] for tensor in given))
                if depth == 0:
                    evidence.elements[id(module)] += max(tensor.numel() for tensor in given)
                    evidence.shapes.update(tuple(tensor.shape[1:]) for tensor in given)
            else:
                num_hidden += 1  # keywords are not shown to hooks of all modules
                evidence.is_hidden = True
        depth += 1

    def leave(module: torch.nn.Module, *_: Any) -> None:
        nonlocal depth, num_hidden
        depth -= 1
        num_hidden = min(num_hidden, depth)
        if depth == 0:
            evidence.rows[id(module)] += most_rows

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


def wrong_size(batch: Any, size: int, make: Callable[[int], Any]) -> str | None:
    """Return what is wrong with a batch that shows that it does not hold `size` samples, or None.

    Samples lie along the first dimension of tensors, where a sample may be several rows (crops, views), or along the
    second where sequences come first; or they are texts in a list. A batch without either cannot be judged.

    Args:
        batch: What `make` returned for `size`.
        size: How many samples it should hold.
        make: Asked for a single sample where only that tells whether more samples are more rows, or whether the second
            dimension counts samples.
    """
    shapes = [tuple(leaf.shape) for leaf in tensors_of(batch) if leaf.ndim]
    if not shapes:
        counts = list(_numbers_of_texts(batch))
        if counts and size not in counts:
            return f"batch({size}) returned a list of {' and one of '.join(map(str, counts))} texts: not {size} samples"
        return None
    if any(shape[0] == size for shape in shapes):
        return None
    has_rows = any(shape[0] and shape[0] % size == 0 for shape in shapes)
    if has_rows and size == 1:
        return None
    is_second = any(shape[1:2] == (size,) for shape in shapes)
    single: list[tuple[int, ...]] = []
    try:
        single = [tuple(leaf.shape) for leaf in tensors_of(make(1)) if leaf.ndim]
    except Exception:  # noqa: BLE001  a single sample may be refused
        if has_rows or is_second:
            return None
    grows = sum(shape[0] for shape in single) < sum(shape[0] for shape in shapes)
    if (has_rows and grows) or (is_second and any(shape[1:2] == (1,) for shape in single)):
        return None
    listed = ", ".join(str(shape) for shape in shapes[:4])
    if single == shapes:
        return f"batch({size}) returned tensors of shape {listed}, and so does batch(1): it ignores its size"
    most = max(shape[0] for shape in shapes)
    end = f". If the data ends there, search up to it: cap={most} (--cap {most})" if 1 < most < size else ""
    return f"batch({size}) returned tensors of shape {listed}: none holds {size} samples{end}"


def _numbers_of_texts(value: Any) -> Iterator[int]:
    """Yield the length of every list of texts inside a batch."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(each, str) for each in value):
        yield len(value)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _numbers_of_texts(each)
    elif isinstance(value, dict):
        yield from _numbers_of_texts(list(value.values()))


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor inside a batch or a call's arguments."""
    leaves, _ = torch.utils._pytree.tree_flatten(value)
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif hasattr(leaf, "items") and callable(leaf.items):
            yield from tensors_of(dict(leaf.items()))
