"""The learning rate and β₂ for another effective batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from brim.errors import InputError
from brim.planning.batch_plan import check_count

# Beyond this ratio of batches the rules are an extrapolation: sweep the learning rate instead.
# Source: linear scaling held from 256 up to 8,192, a ratio of 32 (Goyal et al., 2017), and beyond the critical batch no
# rate makes up for fewer steps (McCandlish et al., 2018).
FAR = 32
# For how long the linear rule is warmed up to (Goyal et al., 2017).
WARM_UP_EPOCHS = 5
RULES = ("adam", "sgd")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledRate:
    """Hyperparameters for a changed effective batch, with the reason of each.

    Attributes:
        ratio: The new effective batch over the old, κ.
        learning_rate: The new learning rate.
        beta2: The new β₂; None for SGD.
        reasons: One line each.
    """

    ratio: float
    learning_rate: float
    beta2: float | None
    reasons: tuple[str, ...]


def scale_learning_rate(
    learning_rate: float, *, tuned_at: int, effective: int, optimizer: str = "adam", beta2: float = 0.999
) -> ScaledRate:
    """Return the learning rate and β₂ that fit another effective batch.

    Args:
        learning_rate: The rate that is known to work.
        tuned_at: The effective batch at which it works.
        effective: The effective batch it is wanted for.
        optimizer: `adam` (also AdamW) or `sgd`.
        beta2: Adam's β₂ at `tuned_at`.

    >>> scaled = scale_learning_rate(3e-4, tuned_at=64, effective=256)
    >>> round(scaled.learning_rate, 6), round(scaled.beta2, 6)
    (0.0006, 0.996006)
    """
    _check(learning_rate, optimizer, beta2)
    check_count("tuned_at", tuned_at)
    check_count("effective", effective)
    ratio = effective / tuned_at
    far = (f"κ = {ratio:g} is far from 1: take the rate as the middle of a sweep.",) if _is_far(ratio) else ()
    if optimizer == "sgd":
        return ScaledRate(
            ratio=ratio,
            learning_rate=learning_rate * ratio,
            beta2=None,
            reasons=(
                f"SGD: rate × κ = {ratio:g}, as κ times fewer steps must go as far (Goyal et al., 2017).",
                f"Warm up from {learning_rate:g} over {WARM_UP_EPOCHS} epochs: early gradients change too fast for it.",
                *far,
            ),
        )
    half_life = math.log(0.5) / math.log(beta2) * tuned_at
    return ScaledRate(
        ratio=ratio,
        learning_rate=learning_rate * math.sqrt(ratio),
        beta2=beta2**ratio,
        reasons=(
            f"Adam: rate × √κ = {math.sqrt(ratio):.4g}, as its steps are scaled by the gradients' noise "
            "(Malladi et al., 2022).",
            f"β₂ to the power of κ keeps its half-life of {half_life:,.0f} samples (Marek et al., 2025); β₁ stays.",
            *far,
        ),
    )


def _is_far(ratio: float) -> bool:
    return ratio > FAR or ratio < 1 / FAR


def _check(learning_rate: float, optimizer: str, beta2: float) -> None:
    if optimizer not in RULES:
        raise InputError(f"There is no rule for {optimizer!r}. Use one of: {', '.join(RULES)}.")
    if not (math.isfinite(learning_rate) and learning_rate > 0):
        raise InputError(f"The learning rate is {learning_rate!r}. Use a number above 0, e.g. 3e-4.")
    if not 0 < beta2 < 1:
        raise InputError(f"β₂ is {beta2!r}. Use a number between 0 and 1, e.g. 0.999.")
