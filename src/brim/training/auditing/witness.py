"""Sees what a loop does, without a change to it: draws, forward and backward passes, unscaling, clipping, steps."""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, Dataset

from brim.errors import InputError
from brim.training.auditing.reference import Microbatch, RandomState


@dataclass(slots=True, kw_only=True)
class Seen:
    """What happened since the last update.

    Attributes:
        microbatches: What each backward pass was about.
        is_scaled: Whether gradients are multiplied by a scaler's scale at the moment.
        unclipped: The gradients before they were clipped, where they were clipped rightly.
        is_uncleared: Whether there were gradients before the first backward pass.
        is_clipped_scaled: Whether they were clipped while they were scaled, and it changed them.
        is_stepped: Whether an optimizer stepped.
    """

    microbatches: list[Microbatch] = field(default_factory=list)
    is_scaled: bool = False
    unclipped: dict[torch.Tensor, torch.Tensor] = field(default_factory=dict)
    is_uncleared: bool = False
    is_clipped_scaled: bool = False
    is_stepped: bool = False


class Batches(Dataset[Any]):
    """The microbatches of an audit, and which of them were drawn in which order."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches
        self.drawn: list[Any] = []

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Any:
        self.drawn.append(self._batches[index])
        return copy.copy(self._batches[index])  # loops take things out of a dictionary

    def loader(self) -> DataLoader[Any]:
        """Return a loader of these microbatches as they are, in their order."""
        return DataLoader(self, batch_size=1, shuffle=False, collate_fn=_only_one)


class Witness:
    """Watches one loop, and tells when a window is about to be updated with and when it is over.

    Args:
        parameters: What the loop trains.
        batches: What the loop draws from. Its n-th backward pass is taken to be about its n-th draw.
        on_step: Called with what was seen and the optimizer, when its gradients are final.
        on_close: Called with what was seen, when the next window begins or the loop ends.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        batches: Batches,
        *,
        on_step: Callable[[Seen, torch.optim.Optimizer], None],
        on_close: Callable[[Seen], None],
    ) -> None:
        self.num_backwards = 0
        self._parameters = parameters
        self._batches = batches
        self._on_step = on_step
        self._on_close = on_close
        self._seen = Seen()
        self._random_state: RandomState | None = None
        self._is_busy = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch until the block ends."""
        with ExitStack() as stack:
            stack.callback(register_module_forward_pre_hook(self._see_forward).remove)
            stack.callback(register_optimizer_step_pre_hook(self._see_step).remove)
            stack.enter_context(_wrapped(torch.autograd, "backward", self._see_backward))
            stack.enter_context(_wrapped(torch.amp.GradScaler, "scale", self._see_scale))
            stack.enter_context(_wrapped(torch.amp.GradScaler, "unscale_", self._see_unscale))
            stack.enter_context(_wrapped(torch.amp.GradScaler, "step", self._see_scaler_step))
            for clip in (torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad_value_):
                stack.enter_context(_wrapped_everywhere(clip, self._see_clip))
            yield
        self._close()

    def _see_forward(self, *_: Any) -> None:
        if self._random_state is None and not self._is_busy and torch.is_grad_enabled():
            self._random_state = RandomState()

    def _see_backward(self, backward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._close_if_stepped()
        batch = self._next_batch()
        if not self._seen.microbatches:
            gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
            self._seen.is_uncleared = any(bool(gradient.count_nonzero()) for gradient in gradients)
        result = backward(*args, **kwargs)
        state = self._random_state or RandomState()
        self._seen.microbatches.append(Microbatch(batch=batch, random_state=state))
        self.num_backwards += 1
        self._random_state = None
        return result

    def _next_batch(self) -> Any:
        """Return the batch that the backward pass which begins is about."""
        num_drawn = len(self._batches.drawn)
        if num_drawn == 0:
            raise InputError("The loop drew nothing from the loader it is given. It has to iterate over its argument.")
        if self.num_backwards == num_drawn:
            raise InputError(
                f"The loop runs more backward passes than it has drawn batches ({num_drawn}), so it is not clear which "
                "belongs to which. Add up the losses of a batch, and run one backward pass."
            )
        return self._batches.drawn[self.num_backwards]

    def _see_scale(self, scale: Callable[..., Any], scaler: Any, *args: Any) -> Any:
        self._close_if_stepped()
        self._seen.is_scaled = scaler.is_enabled()
        return scale(scaler, *args)

    def _see_unscale(self, unscale: Callable[..., Any], scaler: Any, optimizer: Any) -> Any:
        result = unscale(scaler, optimizer)
        self._seen.is_scaled = False
        return result

    def _see_scaler_step(self, step: Callable[..., Any], scaler: Any, *args: Any, **kwargs: Any) -> Any:
        result = step(scaler, *args, **kwargs)
        if not self._seen.is_stepped:
            self._seen = Seen()  # gradients were not finite, and the scaler left the update out
        return result

    def _see_clip(self, clip: Callable[..., Any], parameters: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        before = {p: p.grad.detach().clone() for p in parameters if p.grad is not None}
        result = clip(parameters, *args, **kwargs)
        if not self._seen.is_scaled:
            self._seen.unclipped = {**before, **self._seen.unclipped}
        elif any(not torch.equal(gradient, parameter.grad) for parameter, gradient in before.items()):
            self._seen.is_clipped_scaled = True
        return result

    def _see_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._tell_step(optimizer)
            return None

        def watched_closure() -> Any:
            result = closure()
            self._tell_step(optimizer)
            return result

        return args[:1], {**kwargs, "closure": watched_closure}

    def _tell_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._seen.is_stepped = True
        self._is_busy = True
        try:
            self._on_step(self._seen, optimizer)
        finally:
            self._is_busy = False

    def _close_if_stepped(self) -> None:
        """Begin the next window: what comes now is not about the last update any more."""
        if self._seen.is_stepped:
            self._close()

    def _close(self) -> None:
        seen, self._seen = self._seen, Seen()
        if seen.microbatches:
            self._on_close(seen)


def _only_one(items: list[Any]) -> Any:
    return items[0]


@contextmanager
def _wrapped(owner: Any, name: str, see: Callable[..., Any]) -> Iterator[None]:
    """Let `see` be called instead of `owner.name`, with the original before its arguments."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return see(original, *args, **kwargs)

    setattr(owner, name, wrapper)
    try:
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def _wrapped_everywhere(function: Callable[..., Any], see: Callable[..., Any]) -> Iterator[None]:
    """Do the same wherever a module has imported `function` by name."""
    with ExitStack() as stack:
        for module in [module for module in sys.modules.values() if isinstance(module, ModuleType)]:
            for name in [name for name, value in vars(module).items() if value is function]:
                stack.enter_context(_wrapped(module, name, see))
        yield
