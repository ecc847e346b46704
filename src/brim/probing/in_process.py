"""Probes in the caller's own process, for notebooks: everything that training changes is put back."""

from __future__ import annotations

import ctypes
import gc
import inspect
import sys
from pathlib import Path

from brim.cases import Case
from brim.devices import Device, make_meter
from brim.findings import Race
from brim.history import hash_file
from brim.probing.mixing import Mix, mixed
from brim.probing.outcome import Outcome, Traced, outcome_from
from brim.probing.snapshot import restored
from brim.probing.trial import run_trial
from brim.workload import Workload


class InProcessProber:
    """Runs every probe here and leaves the process as it was."""

    def __init__(self, workload_class: type[Workload], device: Device) -> None:
        self._workload_class = workload_class
        self._device = device

    @property
    def kind(self) -> str:
        """What a step of the workload does."""
        return self._workload_class.kind

    @property
    def ranks(self) -> int:
        """One: this process."""
        return 1

    def probe(
        self,
        case: Case,
        microbatch: int,
        *,
        steps: int,
        confirms: bool = False,
        mix: Mix = (),
        race: Race | None = None,
    ) -> Outcome:
        """Run one probe in this process."""
        meter = make_meter(self._device.name)  # starts CUDA, whose random generators are to be put back as well
        with restored():
            release_memory()
            result = run_trial(
                mixed(self._workload_class, mix),
                case,
                microbatch,
                steps=steps,
                meter=meter,
                limit_bytes=self._device.limit_bytes,
                race=race,
            )
        release_memory()
        return outcome_from(microbatch, result, sources=_source_of(self._workload_class))

    def trace(self, case: Case, *, cap: int, steps: int) -> Traced:
        """Refuse: fake tensors would meet the real ones that live in this process."""
        return Traced(problem="isolate=False runs beside live tensors")

    def close(self) -> None:
        """Do nothing: no process was started."""


def release_memory() -> None:
    """Give freed memory back, so that one probe does not weigh on the next."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def _source_of(workload_class: type[Workload]) -> dict[str, str]:
    try:
        path = Path(inspect.getfile(workload_class))
    except (TypeError, OSError):
        return {}
    digest = hash_file(path)
    return {} if digest is None else {str(path): digest}
