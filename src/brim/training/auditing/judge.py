"""Holds every update of a loop against its reference, and names what is wrong with it."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import nn

from brim.errors import InputError
from brim.training.auditing.causes import Cause, Fit, Weighting, name_causes
from brim.training.auditing.reference import LossFn, Referee, Reference
from brim.training.auditing.report import AuditedWindow, AuditReport
from brim.training.auditing.witness import Seen


@dataclass(slots=True, kw_only=True)
class Comparison:
    """The gradient of one update beside its references, as sums that grow with every optimizer that steps.

    Attributes:
        is_used: Whether there was an update at all.
        is_uncleared: Whether the window began with gradients of what was before it.
        is_clipped_scaled: Whether gradients were clipped while a scaler's scale was on them.
        own_square: The squared norm of the loop's gradient.
        apart_square: The squared norm of its difference from the truth.
        products: Its products with the references.
        squares: The squared norms of the references.
    """

    reference: Reference
    num_microbatches: int
    is_used: bool = False
    is_uncleared: bool = False
    is_clipped_scaled: bool = False
    own_square: float = 0.0
    apart_square: float = 0.0
    products: dict[Weighting, float] = field(default_factory=lambda: dict.fromkeys(Weighting, 0.0))
    squares: dict[Weighting, float] = field(default_factory=lambda: dict.fromkeys(Weighting, 0.0))

    def add(self, index: int, gradient: torch.Tensor) -> None:
        """Take in the loop's gradient of one parameter."""
        gradient = gradient.double()
        self.own_square += float(gradient.square().sum())
        for weighting, references in self.reference.gradients.items():
            reference = references[index].double()
            self.products[weighting] += float((gradient * reference).sum())
            self.squares[weighting] += float(reference.square().sum())
            if weighting is Weighting.ITEMS:
                self.apart_square += float((gradient - reference).square().sum())

    def fit(self, weighting: Weighting) -> Fit:
        """Return how the loop's gradient compares with one way of weighting."""
        scale = self.products[weighting] / (self.squares[weighting] or 1.0)
        left = max(0.0, self.own_square - scale * self.products[weighting])
        return Fit(scale=scale, residual=math.sqrt(left / (self.own_square or 1.0)))

    @property
    def difference(self) -> float:
        """How far the loop's gradient is from the truth, as a share of it."""
        return math.sqrt(self.apart_square / (self.squares[Weighting.ITEMS] or 1.0)) if self.is_used else 1.0


class Judge:
    """Compares every update of a loop with its reference.

    Attributes:
        parameters: What of the model is trained.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFn) -> None:
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._referee = Referee(model, self.parameters, loss_fn)
        self._open: Comparison | None = None
        self._closed: list[Comparison] = []

    def compare(self, seen: Seen, optimizer: torch.optim.Optimizer) -> None:
        """Take in the gradients that an optimizer is about to use."""
        own = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        if not own.intersection(self.parameters):
            raise InputError("The loop's optimizer has no parameter of the model that was given. Pass what it trains.")
        if not seen.microbatches:
            raise InputError("The loop stepped before it used a batch of the loader it is given.")
        if self._open is None:
            self._open = self._begin(seen)
        self._open.is_used = True
        self._open.is_uncleared = seen.is_uncleared
        self._open.is_clipped_scaled = seen.is_clipped_scaled
        scale = getattr(optimizer, "grad_scale", None)  # fused optimizers divide by it themselves
        for index, parameter in enumerate(self.parameters):
            if parameter not in own:
                continue
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach()
            if not seen.is_clipped_scaled:
                gradient = seen.unclipped.get(parameter, gradient)
            self._open.add(index, gradient if scale is None else gradient / scale)

    def close(self, seen: Seen) -> None:
        """Take the window for over."""
        window = self._open or self._begin(seen)
        window.reference.gradients.clear()  # each is as large as the model
        self._open = None
        self._closed.append(window)

    def report(self, *, accumulation: int | None, tolerance: float) -> AuditReport:
        """Name the causes, which takes knowing how long a whole window is."""
        longest = max((window.num_microbatches for window in self._closed), default=1)
        accumulation = max(accumulation or 1, longest)
        whole = [window for window in self._closed if window.num_microbatches == accumulation]
        elsewhere = {cause for window in whole for cause in self._mistakes(window, accumulation, tolerance)}
        windows = [
            AuditedWindow(
                index=index,
                num_microbatches=window.num_microbatches,
                items=window.reference.items,
                ratio=window.fit(Weighting.ITEMS).scale,
                difference=window.difference,
                one_pass_difference=window.reference.one_pass_difference,
                causes=(
                    *self._mistakes(window, accumulation, tolerance, elsewhere),
                    *_limits(window.reference, window.num_microbatches, tolerance),
                ),
            )
            for index, window in enumerate(self._closed, 1)
        ]
        return AuditReport(
            windows=tuple(windows),
            accumulation=accumulation,
            num_ranks=self._referee.num_ranks,
            notes=tuple(self._notes(windows, accumulation)),
        )

    def _begin(self, seen: Seen) -> Comparison:
        reference = self._referee.take(seen.microbatches)
        return Comparison(reference=reference, num_microbatches=len(seen.microbatches))

    def _mistakes(
        self, window: Comparison, accumulation: int, tolerance: float, elsewhere: Collection[Cause] = ()
    ) -> tuple[Cause, ...]:
        """Return what the loop does wrong."""
        if not window.is_used:
            return (Cause.UNUSED_TAIL,)
        if window.difference <= tolerance:
            return ()
        if window.is_uncleared:
            return (Cause.NOT_CLEARED,)
        if window.is_clipped_scaled:
            return (Cause.CLIP_BEFORE_UNSCALE,)
        return name_causes(
            {weighting: window.fit(weighting) for weighting in Weighting if window.squares[weighting]},
            num_microbatches=window.num_microbatches,
            accumulation=accumulation,
            num_ranks=self._referee.num_ranks,
            items=window.reference.items,
            tolerance=tolerance,
            elsewhere=elsewhere if window.num_microbatches < accumulation else (),
        )

    def _notes(self, windows: list[AuditedWindow], accumulation: int) -> list[str]:
        notes = []
        causes = {cause for window in windows for cause in window.causes}
        if causes & {Cause.MISSING_RANKS, Cause.DOUBLE_DIVISION} and accumulation == self._referee.num_ranks > 1:
            notes.append(
                f"With {accumulation} ranks and {accumulation} microbatches in a window, double division and missing × "
                "ranks cannot be told apart: audit with another accumulation."
            )
        problems = {window.reference.problem for window in self._closed if window.reference.problem}
        if problems:
            notes.append(f"No forward pass over a full batch was tried: {' '.join(sorted(problems))}")
        return notes


def _limits(reference: Reference, num_microbatches: int, tolerance: float) -> tuple[Cause, ...]:
    """Return what no loop can make equal: why one forward pass over the full batch has another gradient."""
    if num_microbatches == 1:
        return ()
    inherent = (Cause.BATCH_NORM,) * reference.has_batch_norm + (Cause.DROPOUT,) * reference.is_random
    if reference.one_pass_difference is None:
        return inherent
    return (inherent or (Cause.NOT_A_SUM,)) if reference.one_pass_difference > tolerance else ()
