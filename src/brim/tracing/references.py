"""Who refers to a batch: a step that keeps it holds more in every real step, which is given a batch of its own."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

from brim.tracing.places import tensors_in


class BatchReferences:
    """Counts who refers to the tensors of a batch: all steps get the same, so a leak of it shows in nothing else."""

    def __init__(self, batch: Any) -> None:
        self._tensors = list(tensors_in(batch))
        self._counts: list[int] = []

    def after_step(self) -> None:
        """Count; only counts of the same place in the code can be compared."""
        self._counts.append(sum(sys.getrefcount(tensor) for tensor in self._tensors))

    def grow(self) -> bool:
        """Return whether there were more after every step."""
        return len(self._counts) > 1 and all(after > before for before, after in pairwise(self._counts))
