"""The update at the end of a window: unscale, weight, clip, step, schedule, clear; each once."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from brim.errors import InputError
from brim.findings import Verdict
from brim.probing.snapshot import Trained
from brim.probing.verdicts import classify
from brim.training.telling import warn_caller

_NUM_NAMES = 3


class Updater:
    """The optimizers of a run with what belongs to their step.

    Args:
        model: Whose parameters are named where they get no gradient.
        optimizer: One or a list of them.
        clip_norm: As for the Accumulator.
        scaler: As for the Accumulator.
        scheduler: One, a list of them, or None.
        is_telling: Whether to warn of parameters without a gradient; one rank is enough.

    Attributes:
        grad_norm: The norm of the last gradient before it was clipped, where it was.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        *,
        clip_norm: float | None,
        scaler: torch.amp.GradScaler | None,
        scheduler: Any,
        is_telling: bool,
    ) -> None:
        is_number = isinstance(clip_norm, numbers.Real) and math.isfinite(clip_norm) and clip_norm > 0
        if clip_norm is not None and not is_number:
            raise InputError(f"clip_norm is {clip_norm!r}. Use a number above 0, or None not to clip.")
        self.grad_norm: torch.Tensor | None = None
        self._model = model
        self._optimizers = _as_list(optimizer)
        self._clip_norm = clip_norm
        self._scaler = scaler
        self._schedulers = _as_list(scheduler)
        self._is_checked = not is_telling
        others = [type(given).__name__ for given in self._optimizers if not hasattr(given, "param_groups")]
        if others or not self._optimizers:
            found = others[0] if others else "missing"
            raise InputError(f"The optimizer is {found}. Pass a torch optimizer or a list of them.")
        if any(isinstance(given, torch.optim.LBFGS) for given in self._optimizers):
            raise InputError("LBFGS runs the model by itself, several times a step. Use it without an Accumulator.")

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters of all optimizers, each once."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        return list(dict.fromkeys(parameter for group in groups for parameter in group["params"]))

    def has_gradients(self) -> bool:
        """Return whether any parameter has a gradient."""
        return any(parameter.grad is not None for parameter in self.parameters())

    def gradients(self) -> list[torch.Tensor | None]:
        """Return a copy of every parameter's gradient."""
        gradients = [parameter.grad for parameter in self.parameters()]
        return [None if gradient is None else gradient.detach().clone() for gradient in gradients]

    def check_gradients(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Refuse gradients that are not those of the optimizers' parameters; none at all are fine."""
        parameters = self.parameters()
        shapes = [(p.shape, g.shape) for p, g in zip(parameters, gradients, strict=False) if g is not None]
        if gradients and (len(gradients) != len(parameters) or any(ours != theirs for ours, theirs in shapes)):
            raise InputError(
                f"The state holds {len(gradients)} gradients that do not fit the optimizers' {len(parameters)} "
                "parameters. Load it with the model and optimizers it was saved with."
            )

    def load_gradients(self, gradients: Sequence[torch.Tensor | None]) -> None:
        """Set every parameter's gradient to a copy of what `gradients` returned."""
        for parameter, gradient in zip(self.parameters(), gradients, strict=False):
            parameter.grad = None if gradient is None else gradient.detach().clone().to(parameter.device)

    def weigh(self, factor: float) -> None:
        """Multiply every gradient by `factor`."""
        gradients = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
        if factor != 1 and gradients:
            torch._foreach_mul_(gradients, factor)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss as its backward pass should see it."""
        return loss if self._scaler is None else self._scaler.scale(loss)

    def update(self, factor: float, *, loss: float, is_risky: bool = False) -> bool:
        """Multiply the gradients by `factor`, clip them and step; return whether all optimizers stepped.

        With a scaler, gradients that are not finite make it skip the step and lower its scale.

        Args:
            factor: What to weigh the gradients by.
            loss: The window's, which some schedulers go by.
            is_risky: Whether to keep weights and optimizer states aside, and to put them back where the step fails.
        """
        parameters = self.parameters()
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        self._check_trained(parameters, gradients)
        optimizers = self._optimizers
        if self._scaler is not None:
            # A scaler refuses an optimizer that has nothing to step.
            optimizers = [optimizer for optimizer in optimizers if _has_gradients(optimizer)]
            for optimizer in optimizers:
                self._scaler.unscale_(optimizer)
        self.weigh(factor)
        if self._clip_norm is not None:
            self.grad_norm = nn.utils.clip_grad_norm_(parameters, self._clip_norm)
        kept = self._keep() if is_risky else None
        try:
            is_updated = self._step(optimizers)
        except BaseException:
            if kept is not None:
                kept.restore()
            raise
        if is_updated:
            for scheduler in self._schedulers:
                if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                    scheduler.step(loss)
                else:
                    scheduler.step()
        self.clear()
        return is_updated

    def clear(self) -> None:
        """Drop all gradients."""
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)

    def _keep(self) -> Trained | None:
        """Keep everything that a step changes, where host memory is enough for it."""
        try:
            return Trained(self._optimizers)
        except (RuntimeError, MemoryError) as error:
            if classify(error, nearly_full=True) is not Verdict.OOM:
                raise
            return None

    def _step(self, optimizers: Sequence[torch.optim.Optimizer]) -> bool:
        if self._scaler is None:
            for optimizer in optimizers:
                optimizer.step()
            return True
        scale = self._scaler.get_scale()
        for optimizer in optimizers:
            self._scaler.step(optimizer)
        self._scaler.update()
        return self._scaler.get_scale() >= scale  # it is lowered only where a step was skipped

    def _check_trained(self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        """Refuse a gradient of nothing, and name once the parameters that got none and so are not trained."""
        if not gradients:
            raise InputError(
                f"None of the optimizer's {len(parameters)} parameters got a gradient. Is the loss computed from the "
                "model whose parameters the optimizer has?"
            )
        if self._is_checked:
            return
        self._is_checked = True
        wanted = [parameter for parameter in parameters if parameter.requires_grad]
        missing = [parameter for parameter in wanted if parameter.grad is None]
        if missing:
            known = {id(parameter): name for name, parameter in self._model.named_parameters()}
            names = [known.get(id(parameter), "one that is not in the model") for parameter in missing[:_NUM_NAMES]]
            more = ", …" if len(missing) > _NUM_NAMES else ""
            warn_caller(
                f"{len(missing)} of {len(wanted)} parameters got no gradient in the first window and are left as they "
                f"are: {', '.join(names)}{more}. If that is meant, set requires_grad_(False) on them."
            )


def _has_gradients(optimizer: torch.optim.Optimizer) -> bool:
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])


def _as_list(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]
