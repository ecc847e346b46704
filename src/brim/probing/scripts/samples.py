"""How many samples the modules of a script were given."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from brim.probing.evidence import tensors_of


@dataclass(slots=True)
class SampleCount:
    """Rows and elements that outermost modules were given.

    Attributes:
        rows: The most rows of one call: the samples at once, where these lie along the first dimension.
        elements: The most elements of one call, however they lie.
    """

    rows: int = 0
    elements: int = 0
    _rows_in_all: Counter[int] = field(default_factory=Counter)

    def add(self, module_id: int, args: Any, output: Any) -> None:
        """Count a call; by its output where it was given keywords only, which hooks are not shown."""
        tensors = [tensor for tensor in tensors_of(args) if tensor.ndim]
        tensors = tensors or [tensor for tensor in tensors_of(output) if tensor.ndim]
        if not tensors:
            return
        rows = max(tensor.shape[0] for tensor in tensors)
        self.rows = max(self.rows, rows)
        self.elements = max(self.elements, sum(tensor.numel() for tensor in tensors))
        self._rows_in_all[module_id] += rows

    def to_dict(self) -> dict[str, int]:
        """Return the counts as plain data."""
        return {"rows": self.rows, "elements": self.elements, "samples": max(self._rows_in_all.values(), default=0)}
