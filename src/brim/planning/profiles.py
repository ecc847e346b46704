"""How much of what fits a plan takes, by name."""

from __future__ import annotations

import math

from brim.errors import InputError
from brim.planning.measurement import PROFILES

# The share of the device that the peak may use. Choices: 0.9 is brim's default everywhere; the others leave a fifth for
# what a prediction does not see, or trust it to a twentieth.
FILLS = {"conservative": 0.8, "balanced": 0.9, "aggressive": 0.95}
# The share of a microbatch that is known to fit: it was found under a fill already, so all of it may be taken.
SHARES = {"conservative": 0.8, "balanced": 0.9, "aggressive": 1.0}


def check_profile(name: str) -> str:
    """Return the name of a profile, or refuse it."""
    if name not in PROFILES:
        raise InputError(f"There is no profile {name!r}. Use one of: {', '.join(PROFILES)}.")
    return name


def share_of(largest: int, profile: str) -> int:
    """Return how much of a known largest microbatch a profile takes.

    >>> share_of(86, "conservative"), share_of(1, "conservative"), share_of(86, "aggressive")
    (68, 1, 86)
    """
    return max(1, math.floor(largest * SHARES[check_profile(profile)]))
