"""An answer as the document `brim.plan/1`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from brim.planning.answer import Answer, TracedJob, Wanted
from brim.planning.batch_plan import SCHEMA
from brim.planning.choices import EvenChoice
from brim.planning.frameworks import pastes
from brim.planning.measurement import Extrapolation, step_down
from brim.planning.sizing import Sizing


def document(found: Answer) -> dict[str, Any]:
    """Return the document; what does not belong to an answer is null or empty in it."""
    base = found.plan.to_dict() if found.plan else _nothing(found.wanted)
    return {
        **base,
        "notes": [*base["notes"], *found.warnings],
        "target": found.wanted.effective,
        "largest": found.largest,
        "accumulations": {str(effective): steps for effective, steps in found.accumulations.items()},
        "choices": [_choice(choice) for choice in found.choices],
        "measurement": _measurement(found.measurement) if found.measurement else None,
        "model": _model(found.sizing) if found.sizing else None,
        "thumb": asdict(found.thumb) if found.thumb else None,
        "traced": _traced(found.traced) if found.traced else None,
        "ladder": [rung.to_dict() for rung in found.ladder],
        "takes": list(found.takes),
        "advice": [{"topic": each.topic, "text": each.text} for each in found.advice],
        "learning_rate": asdict(found.rate) if found.rate else None,
        "step_time": asdict(found.step_time) if found.step_time else None,
        "paste": {
            name: {"text": paste.text, "note": paste.note}
            for name, paste in (pastes(found.followed, largest=found.largest) if found.followed else {}).items()
        },
    }


def _nothing(wanted: Wanted) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "effective": wanted.effective,
        "ranks": wanted.ranks,
        "microbatch": None,
        "accumulation": None,
        "microbatches": [],
        "per_rank": None,
        "notes": [],
    }


def _choice(choice: EvenChoice) -> dict[str, int]:
    return {
        "microbatch": choice.plan.microbatch,
        "accumulation": choice.plan.accumulation,
        "effective": choice.plan.effective,
        "difference": choice.difference,
    }


def _measurement(found: Extrapolation) -> dict[str, Any]:
    return {**asdict(found), "factor": found.factor, "step_down": list(step_down(found.chosen.batch))}


def _model(sizing: Sizing) -> dict[str, Any]:
    return {
        "name": sizing.shape.name,
        "source": sizing.shape.source,
        "num_parameters": sizing.shape.num_parameters,
        "training": asdict(sizing.training),
        "gpu": {"name": sizing.gpu.name, "memory_bytes": sizing.gpu.memory_bytes},
        "fill": sizing.fill,
        "held": asdict(sizing.held),
        "sample_bytes": sizing.held.sample_bytes,
    }


def _traced(job: TracedJob) -> dict[str, Any]:
    return {
        "workload": job.workload,
        "case": dict(job.case),
        "gpu": {"name": job.gpu.name, "memory_bytes": job.gpu.memory_bytes},
        "fill": job.fill,
        "largest": job.largest,
        "interval": list(job.interval),
        "microbatch": job.microbatch,
        "device_bytes": job.device_bytes,
        "breakdown": dict(job.breakdown),
        "missing_bytes": job.missing_bytes,
    }
