"""Findings and plans as what trackers keep: parameters and metrics."""

from __future__ import annotations

from typing import Any

from brim.errors import InputError
from brim.findings import Finding, Findings
from brim.planning import BatchPlan


def parameters_of(found: Findings | BatchPlan) -> dict[str, Any]:
    """Return what was asked and answered, by name.

    >>> parameters_of(BatchPlan(effective=80, accumulation=4, ranks=5))["brim.microbatch"]
    4

    Raises:
        InputError: It is something else.
    """
    if not isinstance(found, (Findings, BatchPlan)):
        raise InputError(
            f"A value of type {type(found).__name__} cannot be logged. Pass what brim.find or brim.plan returned: all "
            "findings, not one of them, or a plan."
        )
    if isinstance(found, BatchPlan):
        return {
            "brim.effective": found.effective,
            "brim.microbatch": found.microbatch,
            "brim.accumulation": found.accumulation,
            "brim.ranks": found.ranks,
        }
    asked = {
        "brim.workload": found.workload,
        "brim.kind": found.kind,
        "brim.device": found.device_name,
        "brim.limit_bytes": found.limit_bytes,
        "brim.strategy": found.strategy,
    }
    answered = {f"{_prefix(finding)}.{name}": getattr(finding, name) for finding in found for name in _ANSWERS}
    return {name: value for name, value in {**asked, **answered}.items() if value is not None}


def metrics_of(found: Findings | BatchPlan) -> dict[str, float]:
    """Return what was measured, by name; a plan measures nothing."""
    if isinstance(found, BatchPlan):
        return {}
    metrics: dict[str, float | None] = {}
    for finding in found:
        prefix = _prefix(finding)
        metrics[f"{prefix}.peak_bytes"] = finding.peak_bytes
        metrics[f"{prefix}.samples_per_second"] = finding.samples_per_second
        metrics[f"{prefix}.num_probes"] = len(finding.probes)
        metrics[f"{prefix}.search_seconds"] = finding.seconds
    return {name: float(value) for name, value in metrics.items() if value is not None}


_ANSWERS = ("microbatch", "status", "stopped_by", "confirmed")


def _prefix(finding: Finding) -> str:
    """Return a name for the case of letters that every tracker takes.

    >>> from brim.cases import Case
    >>> _prefix(Finding(case=Case({"seq_len": 512}), microbatch=1, stopped_by="cap", confirmed=True, probes=()))
    'brim.seq_len_512'
    """
    name = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in str(finding.case))
    return f"brim.{name}" if finding.case else "brim"
