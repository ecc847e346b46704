"""What one process of a script has done so far: calls, samples, steps."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from brim.probing.evidence import tensors_of


@dataclass(slots=True)
class Tally:
    """Counts of a process.

    Attributes:
        rows: The most rows of one call: the samples at once, where these lie along the first dimension.
        elements: The most elements of one call, however they lie.
        num_optimizers: The optimizers that were made, used or not.
        is_generating: Whether modules are called inside somebody's `generate`.
    """

    rows: int = 0
    elements: int = 0
    num_steps: int = 0
    num_optimizers: int = 0
    is_generating: bool = False
    calls: Counter[str] = field(default_factory=lambda: Counter(forward=0, backward=0, optimizer=0))
    _rows_in_all: Counter[int] = field(default_factory=Counter)
    _step_seconds: list[float] = field(default_factory=list)
    _step_began: float | None = None

    @property
    def kind(self) -> str:
        """What a step seems to do."""
        if self.is_generating:
            return "generate"
        return "train" if self.calls["optimizer"] or self.calls["backward"] else "eval"

    @property
    def phase(self) -> str:
        """Where the process is: `build` until a module is called."""
        return "build" if self._step_began is None and not self.num_steps else "step"

    def begin_step(self) -> None:
        """Start the clock, unless it runs."""
        if self._step_began is None:
            self._step_began = time.perf_counter()

    def end_step(self) -> None:
        """Count a step; the next one has begun when something is called."""
        self.num_steps += 1
        if self._step_began is not None:
            self._step_seconds.append(time.perf_counter() - self._step_began)
            self._step_began = None

    def add_forward(self, module_id: int, args: Any, output: Any) -> None:
        """Count a call; its samples by its output where it got keywords only, which hooks are not shown."""
        self.calls["forward"] += 1
        tensors = [tensor for tensor in tensors_of(args) if tensor.ndim]
        tensors = tensors or [tensor for tensor in tensors_of(output) if tensor.ndim]
        if tensors:
            rows = max(tensor.shape[0] for tensor in tensors)
            self.rows = max(self.rows, rows)
            self.elements = max(self.elements, sum(tensor.numel() for tensor in tensors))
            self._rows_in_all[module_id] += rows

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {
            "kind": self.kind,
            "steps": self.num_steps,
            "step_seconds": statistics.median(self._step_seconds[1:] or self._step_seconds or [0.0]),
            "calls": dict(self.calls),
            "rows": self.rows,
            "elements": self.elements,
            "samples": max(self._rows_in_all.values(), default=0),
        }
