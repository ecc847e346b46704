"""A workload whose step runs batches of several cases, one after the other, in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brim.cases import Case
from brim.workload import Workload

Mix = Sequence[tuple[Mapping[str, Any], int]]


def mixed(workload_class: type[Workload], mix: Mix) -> type[Workload]:
    """Return the workload with a step that goes through a mix of cases and microbatches; unchanged without one."""
    if not mix:
        return workload_class

    class Mixed(workload_class):  # type: ignore[misc, valid-type]
        def batch(self, size: int) -> Any:
            return None  # made one by one, as a loader does, or the first would be held through all the others

        def step(self, batch: Any) -> None:
            for case, size in mix:
                self.case = Case(case)
                super().step(super().batch(size))

    Mixed.__name__, Mixed.__qualname__ = workload_class.__name__, workload_class.__qualname__
    return Mixed
