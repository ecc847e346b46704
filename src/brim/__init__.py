"""Fill the GPU to the brim, never spill: which batch size to use, measured.

`import brim` is cheap: names are loaded on first use and torch only where a name needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brim.cases import Case
    from brim.devices.catalog import Gpu
    from brim.errors import BrimError
    from brim.finding.find import find
    from brim.findings import Finding, Findings, Probe, Verdict
    from brim.planning import BatchPlan, plan
    from brim.planning.packing import pack
    from brim.project import active_plan
    from brim.sweeping.results import SweepResults
    from brim.sweeping.sweep import sweep
    from brim.tracing import MemoryPeak, Prediction, predict
    from brim.training import Accumulator, AuditReport, audit
    from brim.training.keeping import keep_batches
    from brim.training.packed import collate_packed
    from brim.training.sampler import TokenBudgetSampler
    from brim.training.shrinking import recover
    from brim.watching.telling import log_step
    from brim.workload import Workload

__version__ = "0.1.0"

_HOMES = {
    "Accumulator": "brim.training",
    "AuditReport": "brim.training",
    "BatchPlan": "brim.planning",
    "BrimError": "brim.errors",
    "Case": "brim.cases",
    "Finding": "brim.findings",
    "Findings": "brim.findings",
    "Gpu": "brim.devices.catalog",
    "MemoryPeak": "brim.tracing",
    "Prediction": "brim.tracing",
    "Probe": "brim.findings",
    "SweepResults": "brim.sweeping.results",
    "TokenBudgetSampler": "brim.training.sampler",
    "Verdict": "brim.findings",
    "Workload": "brim.workload",
    "active_plan": "brim.project",
    "audit": "brim.training",
    "collate_packed": "brim.training.packed",
    "find": "brim.finding.find",
    "keep_batches": "brim.training.keeping",
    "log_step": "brim.watching.telling",
    "pack": "brim.planning.packing",
    "plan": "brim.planning",
    "predict": "brim.tracing",
    "recover": "brim.training.shrinking",
    "sweep": "brim.sweeping.sweep",
}

__all__ = [
    "Accumulator",
    "AuditReport",
    "BatchPlan",
    "BrimError",
    "Case",
    "Finding",
    "Findings",
    "Gpu",
    "MemoryPeak",
    "Prediction",
    "Probe",
    "SweepResults",
    "TokenBudgetSampler",
    "Verdict",
    "Workload",
    "active_plan",
    "audit",
    "collate_packed",
    "find",
    "keep_batches",
    "log_step",
    "pack",
    "plan",
    "predict",
    "recover",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'brim' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
