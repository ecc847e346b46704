"""The line through step times, `T(b) = α + β·b`: what a step takes whatever its size, and what a sample adds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from brim.errors import InputError

# The knee: the share of the peak rate from which on more samples pay little. A choice.
KNEE_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """A line through measured step times.

    Attributes:
        fixed_seconds: What a step takes whatever its size, α.
        sample_seconds: What every sample adds, β.
    """

    fixed_seconds: float
    sample_seconds: float

    @property
    def peak_rate(self) -> float:
        """Samples per second that no microbatch reaches."""
        return 1 / self.sample_seconds

    @property
    def half_rate_microbatch(self) -> float:
        """The microbatch that runs at half of the peak rate, n½ = α/β."""
        return self.fixed_seconds / self.sample_seconds

    def seconds(self, microbatch: int) -> float:
        """Return the time of a step."""
        return self.fixed_seconds + self.sample_seconds * microbatch

    def rate(self, microbatch: int) -> float:
        """Return samples per second."""
        return microbatch / self.seconds(microbatch)

    @property
    def knee(self) -> int:
        """The smallest microbatch from which on more samples pay little, 9·n½."""
        return self.microbatch_for(KNEE_SHARE)

    def microbatch_for(self, share: float) -> int:
        """Return the smallest microbatch that runs at a share of the peak rate; 90% is at 9·n½.

        >>> StepTime(fixed_seconds=0.04, sample_seconds=0.005).microbatch_for(0.9)
        72
        """
        if not 0 < share < 1:
            raise InputError(f"share is {share!r}. Use a number between 0 and 1, e.g. 0.9.")
        return max(1, math.ceil(round(self.half_rate_microbatch * share / (1 - share), 9)))


def fit_step_time(seconds: Mapping[int, float]) -> StepTime:
    """Fit the line to step times by microbatch, by least squares of their relative errors: long steps err by more.

    >>> round(fit_step_time({8: 0.08, 32: 0.2}).half_rate_microbatch, 6)
    8.0
    """
    if len(seconds) < 2:
        raise InputError(f"{len(seconds)} timings make no line. Time at least two microbatches.")
    weights = {size: time**-2 for size, time in seconds.items()}
    whole = sum(weights.values())
    mean_size = sum(weight * size for size, weight in weights.items()) / whole
    mean_seconds = sum(weights[size] * time for size, time in seconds.items()) / whole
    spread = sum(weight * (size - mean_size) ** 2 for size, weight in weights.items())
    slope = sum(weights[size] * (size - mean_size) * (time - mean_seconds) for size, time in seconds.items()) / spread
    if slope <= 0:
        raise InputError("Larger microbatches take no longer in these timings. Time sizes that are further apart.")
    return StepTime(fixed_seconds=max(0.0, mean_seconds - slope * mean_size), sample_seconds=slope)
