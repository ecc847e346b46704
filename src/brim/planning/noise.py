"""The gradient noise scale: up to which effective batch more samples mean fewer steps (McCandlish et al., 2018)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from brim.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientMoments:
    """What one optimizer step says about the gradient.

    Attributes:
        noise: Estimate Ŝ of the variance of one sample's gradient, summed over parameters.
        signal: Estimate Ĝ² of the squared length of the true gradient; may be negative by chance.
    """

    noise: float
    signal: float


def gradient_moments(sizes: Sequence[int], squared_norms: Sequence[float], mean_squared_norm: float) -> GradientMoments:
    """Return the unbiased moments of one step from its microbatches, of whatever sizes.

    Args:
        sizes: Samples b_k of each microbatch.
        squared_norms: |g_k|², the squared length of each microbatch's mean gradient.
        mean_squared_norm: |ḡ|², that of the mean over all samples, ḡ = Σ b_k g_k / Σ b_k.

    >>> gradient_moments([1, 1], [4.0, 2.0], 2.5)
    GradientMoments(noise=1.0, signal=2.0)
    """
    if len(sizes) != len(squared_norms) or len(sizes) < 2:
        raise InputError(
            f"{len(sizes)} sizes and {len(squared_norms)} gradients: the noise shows between at least two microbatches "
            "with one gradient each."
        )
    total = sum(sizes)
    weighted = sum(size * norm for size, norm in zip(sizes, squared_norms, strict=True))
    noise = (weighted - total * mean_squared_norm) / (len(sizes) - 1)
    return GradientMoments(noise=noise, signal=mean_squared_norm - noise / total)


def noise_scale(steps: Iterable[GradientMoments]) -> float:
    """Return mean noise over mean signal of several steps; never the mean of ratios, which is biased.

    >>> noise_scale([GradientMoments(noise=1.0, signal=2.0), GradientMoments(noise=3.0, signal=0.0)])
    2.0
    """
    listed = list(steps)
    signal = sum(each.signal for each in listed)
    if signal <= 0:
        raise InputError(
            f"{len(listed)} steps show no gradient above the noise. Measure more steps, or larger microbatches."
        )
    return sum(each.noise for each in listed) / signal
