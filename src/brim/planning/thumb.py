"""The old rule of thumb: gigabytes per sample by model size alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from brim.units import format_gigabytes

# Gigabytes per sample by billions of parameters, for classification.
# Source: the rule this project started from; where its figures come from is not known.
GIGABYTES_PER_SAMPLE = {1: 0.1, 3: 0.2, 7: 0.4, 13: 0.8, 30: 1.5, 70: 3.0}
TASK_FACTORS = {"classification": 1.0, "qa": 1.2, "generation": 1.5}
# The share of the memory that the batch may use.
USABLE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Thumb:
    """What the rule says.

    Attributes:
        size: The size of the rule that is nearest, in billions of parameters.
        sample_bytes: Memory per sample.
        usable_bytes: What the batch may use.
        largest: The power of two that fits; 0 where not even one sample does.
        state_bytes: Weights, gradients and optimizer, which the rule leaves out.
    """

    size: int
    sample_bytes: int
    usable_bytes: int
    largest: int
    state_bytes: int

    @property
    def leaves_out(self) -> str:
        """What the rule leaves out, in one line."""
        return (
            f"The rule leaves out weights, gradients and optimizer, {format_gigabytes(self.state_bytes)} here, "
            "and knows nothing of sequence length, precision and method. Without --rule thumb all are counted."
        )


def rule_of_thumb(
    num_parameters: int, *, memory_bytes: int, task: str = "classification", state_bytes: int = 0
) -> Thumb:
    """Return the batch that the rule gives.

    >>> rule_of_thumb(7_000_000_000, memory_bytes=24 * 10**9).largest
    32
    >>> rule_of_thumb(70_000_000_000, memory_bytes=5 * 10**9, task="generation").largest
    0
    """
    billions = num_parameters / 1e9
    size = min(GIGABYTES_PER_SAMPLE, key=lambda known: abs(math.log(known / billions)))
    sample_bytes = round(GIGABYTES_PER_SAMPLE[size] * TASK_FACTORS[task] * 1e9)
    usable_bytes = round(USABLE * memory_bytes)
    fitting = usable_bytes // sample_bytes
    return Thumb(
        size=size,
        sample_bytes=sample_bytes,
        usable_bytes=usable_bytes,
        largest=2 ** int(math.log2(fitting)) if fitting else 0,
        state_bytes=state_bytes,
    )
