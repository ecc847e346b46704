"""Why an accumulated gradient is not the full batch's, by name, from a few measured numbers."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass


class Cause(str, enum.Enum):
    """A reason for a gradient that is not the full batch's."""

    MEAN_OF_MEANS = "mean of means"
    CONSTANT_TAIL = "constant division of the tail"
    DOUBLE_DIVISION = "double division"
    NO_DIVISION = "no division"
    MISSING_RANKS = "missing × ranks"
    CLIP_BEFORE_UNSCALE = "clip before unscale"
    UNUSED_TAIL = "unused tail"
    NOT_CLEARED = "gradients not cleared"
    WRONG_DIVISOR = "wrong divisor"
    BATCH_NORM = "BatchNorm"
    DROPOUT = "dropout randomness"
    NOT_A_SUM = "not a sum over items"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


# What no loop can make equal.
INHERENT = frozenset({Cause.BATCH_NORM, Cause.DROPOUT, Cause.NOT_A_SUM})

ADVICE = {
    Cause.MEAN_OF_MEANS: "microbatches, or ranks, count alike though they hold different numbers of items. Sum the "
    "losses, and divide once by the items of the whole window over all ranks.",
    Cause.CONSTANT_TAIL: "the last, shorter window is divided by the length of a whole one. Divide by what it holds.",
    Cause.DOUBLE_DIVISION: "the gradient is divided by the number of microbatches twice. Where the loss already is "
    "divided by the items of the window, or the framework divides it, do not divide it again.",
    Cause.NO_DIVISION: "nothing divides the sum: the update grows with the window. Divide by the items of the window.",
    Cause.MISSING_RANKS: "losses are divided by the items of all ranks, and then the ranks' gradients are averaged, "
    "not summed. Multiply the loss by the number of ranks.",
    Cause.CLIP_BEFORE_UNSCALE: "the norm that was clipped is the scaled one. Call scaler.unscale_(optimizer) first.",
    Cause.UNUSED_TAIL: "the last microbatches were followed by no update: they are lost, or leak into what comes next. "
    "Step once more where the data ends.",
    Cause.NOT_CLEARED: "the window began with gradients of what was before it. Call optimizer.zero_grad() after every "
    "step.",
    Cause.WRONG_DIVISOR: "the direction is right and the length is not: the loss is divided by something else than its "
    "items. Of a language model, items are the labels that are a target: shifted by one, and not ignored.",
    Cause.BATCH_NORM: "it normalizes over what is in one forward pass, so microbatches cannot give the full batch's "
    "gradient. Use GroupNorm or LayerNorm, or keep its statistics fixed with eval().",
    Cause.DROPOUT: "other units are dropped in every forward pass, so gradients are equal on average only. No harm.",
    Cause.NOT_A_SUM: "the loss of a batch depends on what else is in it, as contrastive losses do, so microbatches "
    "cannot give the full batch's gradient. Or loss_fn returns a mean: then let it return the sum.",
    Cause.UNKNOWN: "none of the known mistakes gives this gradient. Does loss_fn compute the loss of the loop?",
}

_NOT_IN_ALL_WINDOWS = {Cause.CONSTANT_TAIL, Cause.MEAN_OF_MEANS}


class Weighting(str, enum.Enum):
    """What counts alike in a gradient: the truth is that items do."""

    ITEMS = "items"
    MICROBATCHES = "microbatches"
    RANKS = "ranks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How the loop's gradient compares with one way of weighting.

    Attributes:
        scale: The factor that brings the weighted gradient nearest to the loop's.
        residual: What remains then, as a share of the loop's gradient.
    """

    scale: float
    residual: float


def name_causes(
    fits: Mapping[Weighting, Fit],
    *,
    num_microbatches: int,
    accumulation: int,
    num_ranks: int,
    items: float,
    tolerance: float,
    elsewhere: Collection[Cause] = (),
) -> tuple[Cause, ...]:
    """Return the fewest mistakes that explain the loop's gradient; none where it is right.

    Where several explain it, a tail is likely to suffer from what is wrong in the whole windows, `elsewhere`.

    >>> fits = {Weighting.ITEMS: Fit(scale=0.5, residual=0.0)}
    >>> [str(cause) for cause in name_causes(
    ...     fits, num_microbatches=2, accumulation=4, num_ranks=1, items=9, tolerance=0.001
    ... )]
    ['constant division of the tail']
    """
    explanations = [
        (causes, fits[weighting].scale / scale)
        for weighting in Weighting
        if weighting in fits and fits[weighting].residual <= tolerance
        for causes, scale in _explanations(weighting, num_microbatches, accumulation, num_ranks, items)
    ]
    scaling = set(elsewhere) - _NOT_IN_ALL_WINDOWS
    explanations.sort(key=lambda found: (set(found[0]) - _NOT_IN_ALL_WINDOWS != scaling, len(found[0])))
    for causes, ratio in explanations:
        if abs(ratio - 1) <= tolerance:
            return causes
    return (Cause.WRONG_DIVISOR,) if fits[Weighting.ITEMS].residual <= tolerance else (Cause.UNKNOWN,)


def _explanations(
    weighting: Weighting, num_microbatches: int, accumulation: int, num_ranks: int, items: float
) -> list[tuple[tuple[Cause, ...], float]]:
    """Return mistakes with the factor by which they scale a gradient of this weighting, likelier ones first."""
    by_items = weighting is Weighting.ITEMS
    weights = () if by_items else (Cause.MEAN_OF_MEANS,)
    divisions: list[tuple[tuple[Cause, ...], float]] = [((), 1.0)]
    if num_microbatches < accumulation:
        tail = num_microbatches / accumulation
        divisions += [
            ((Cause.CONSTANT_TAIL,), tail),
            ((Cause.DOUBLE_DIVISION,), 1 / num_microbatches),
            ((Cause.CONSTANT_TAIL, Cause.DOUBLE_DIVISION), tail / accumulation),
        ]
    divisions += [
        ((Cause.DOUBLE_DIVISION,), 1 / accumulation),
        ((Cause.NO_DIVISION,), float(num_microbatches)),
    ]
    if by_items:
        divisions.append(((Cause.NO_DIVISION,), items / num_ranks))
    ranks: list[tuple[tuple[Cause, ...], float]] = [((), 1.0)]
    if num_ranks > 1:
        ranks.append(((Cause.MISSING_RANKS,), 1 / num_ranks))
    return [
        ((*weights, *over_ranks, *divided), rank_scale * scale)
        for divided, scale in divisions
        for over_ranks, rank_scale in ranks
    ]
