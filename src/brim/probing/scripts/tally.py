"""What one process of a script has done so far: calls, samples, steps."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from brim.probing.evidence import tensors_of


@dataclass(slots=True)
class _Given:
    """What outermost modules were given.

    Attributes:
        rows: The most rows of one call: the samples at once, where these lie along the first dimension.
        elements: The most elements of one call, however they lie.
        columns: The most columns of one call: the samples at once of a model that has time along the first dimension.
        rows_of: The rows of all calls, by the module's identity.
        columns_of: The same of columns.
    """

    rows: int = 0
    columns: int = 0
    elements: int = 0
    rows_of: Counter[int] = field(default_factory=Counter)
    columns_of: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True)
class Tally:
    """Counts of a process.

    Attributes:
        num_optimizers: The optimizers that were made, used or not.
        is_generating: Whether modules are called inside somebody's `generate`.
    """

    num_steps: int = 0
    num_optimizers: int = 0
    is_generating: bool = False
    calls: Counter[str] = field(default_factory=lambda: Counter(forward=0, backward=0, optimizer=0))
    # A validation in between has batches of its own, so what is given in training is kept apart.
    _trained_on: _Given = field(default_factory=_Given)
    _evaluated_on: _Given = field(default_factory=_Given)
    _steps_of: Counter[int] = field(default_factory=Counter)
    _step_seconds: list[float] = field(default_factory=list)
    _is_in_step: bool = False
    _clock: float | None = None

    @property
    def kind(self) -> str:
        """What a step seems to do."""
        if self.is_generating:
            return "generate"
        return "train" if self.calls["optimizer"] or self.calls["backward"] else "eval"

    @property
    def phase(self) -> str:
        """Where the process is: `build` until a module is called."""
        return "build" if not self._is_in_step and not self.num_steps else "step"

    def begin_step(self) -> bool:
        """Return whether a step begins with this call; the first one starts the clock."""
        if self._is_in_step:
            return False
        self._is_in_step = True
        self._clock = self._clock or time.perf_counter()
        return True

    def end_step(self) -> None:
        """Count a step and its time, from the end of the last one on: loading data is a part of it."""
        self.num_steps += 1
        now = time.perf_counter()
        if self._clock is not None:
            self._step_seconds.append(now - self._clock)
        self._clock, self._is_in_step = now, False

    def add_optimizer_step(self, optimizer_id: int) -> bool:
        """Count an optimizer's step; True when all that were ever used have made it, as those of a GAN have."""
        self.calls["optimizer"] += 1
        self._steps_of[optimizer_id] += 1
        return min(self._steps_of.values()) > self.num_steps

    def add_forward(self, module_id: int, args: Any, output: Any, *, is_training: bool) -> None:
        """Count a call; its samples by its output where it got keywords only, which hooks are not shown."""
        self.calls["forward"] += 1
        tensors = [tensor for tensor in tensors_of(args) if tensor.ndim]
        tensors = tensors or [tensor for tensor in tensors_of(output) if tensor.ndim]
        if tensors:
            given = self._trained_on if is_training else self._evaluated_on
            rows = max(tensor.shape[0] for tensor in tensors)
            columns = max((tensor.shape[1] for tensor in tensors if tensor.ndim > 1), default=0)
            given.rows, given.columns = max(given.rows, rows), max(given.columns, columns)
            given.elements = max(given.elements, sum(tensor.numel() for tensor in tensors))
            given.rows_of[module_id] += rows
            given.columns_of[module_id] += columns

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        given = self._trained_on if self._trained_on.rows else self._evaluated_on
        timings = self._step_seconds[1:] or self._step_seconds
        return {
            "kind": self.kind,
            "steps": self.num_steps,
            "begun": self.num_steps + self._is_in_step,
            "step_seconds": statistics.median(timings or [0.0]),
            "timings": timings,
            "calls": dict(self.calls),
            "rows": given.rows,
            "columns": given.columns,
            "elements": given.elements,
            "rows_in_all": max(given.rows_of.values(), default=0),
            "columns_in_all": max(given.columns_of.values(), default=0),
        }
