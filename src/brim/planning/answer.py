"""What `brim plan` answers: a plan with where it comes from, what it costs, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from brim.cases import Case
from brim.devices.catalog import Gpu
from brim.planning.advice import Advice, advise
from brim.planning.batch_plan import SCHEMA, BatchPlan, describe, fewest_microbatches, gives, plan
from brim.planning.choices import EvenChoice, at_microbatch
from brim.planning.frameworks import pastes
from brim.planning.ladder import MUCH_ACCUMULATION, Rung
from brim.planning.learning_rate import ScaledRate, scale_learning_rate
from brim.planning.measurement import Extrapolation, step_down
from brim.planning.sizing import Sizing, what_it_takes
from brim.planning.throughput import StepTime, fit_step_time
from brim.planning.thumb import USABLE, Thumb
from brim.units import format_gigabytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a user wants of a plan, wherever the largest microbatch comes from.

    Attributes:
        effective: Samples per optimizer step; None for as many as fit without accumulation.
        uneven: Let some ranks take one sample more than others.
        ladder: Show the memory ladder even where it is not needed.
        dataset_size: Samples in the dataset.
        symptom: `unstable` or `slow`.
        learning_rate: A rate that works at the effective batch `tuned_at`.
        rule: How it is scaled: `adam` or `sgd`.
        timings: Measured seconds of a step by microbatch.
    """

    effective: int | None = None
    ranks: int = 1
    uneven: bool = False
    ladder: bool = False
    dataset_size: int | None = None
    symptom: str | None = None
    learning_rate: float | None = None
    tuned_at: int | None = None
    rule: str = "adam"
    beta2: float = 0.999
    timings: Mapping[int, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedJob:
    """What a trace of the user's own workload says.

    Attributes:
        largest: The largest microbatch predicted to fit; 0 where there is none.
        interval: Bounds on it.
        microbatch: The size that the memory below is of.
        device_bytes: Its peak on the device.
        breakdown: Its bytes by kind.
        missing_bytes: By how much it passes what the job may use.
    """

    workload: str
    case: Case
    gpu: Gpu
    fill: float
    largest: int
    interval: tuple[int, int]
    microbatch: int
    device_bytes: int
    breakdown: Mapping[str, int]
    missing_bytes: int
    ladder: tuple[Rung, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A plan, and all that belongs to it.

    Attributes:
        wanted: What was asked for.
        plan: The answer; None where nothing fits.
        largest: The largest microbatch that fits; None where it is not known.
        choices: Even choices near the target, where a microbatch was to be kept.
        takes: What would make it fit, where nothing does.
    """

    wanted: Wanted
    plan: BatchPlan | None
    largest: int | None = None
    choices: tuple[EvenChoice, ...] = ()
    measurement: Extrapolation | None = None
    sizing: Sizing | None = None
    thumb: Thumb | None = None
    traced: TracedJob | None = None
    ladder: tuple[Rung, ...] = ()
    takes: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()
    rate: ScaledRate | None = None
    step_time: StepTime | None = None

    @property
    def ladder_goal(self) -> int:
        """The microbatch that is worth climbing for: little accumulation, or none where there is little already."""
        share = math.ceil((self.wanted.effective or 1) / self.wanted.ranks)
        with_little = math.ceil(share / MUCH_ACCUMULATION)
        return share if (self.largest or 0) >= with_little else with_little

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know before the plan is trusted."""
        found = list(self.measurement.warnings) if self.measurement else []
        if self.thumb:
            found.append(self.thumb.leaves_out)
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Return the document `brim.plan/1`."""
        base = self.plan.to_dict() if self.plan else _nothing(self.wanted)
        return {
            **base,
            "notes": [*base["notes"], *self.warnings],
            "target": self.wanted.effective,
            "largest": self.largest,
            "choices": [_choice(choice) for choice in self.choices],
            "measurement": _measurement(self.measurement) if self.measurement else None,
            "model": _model(self.sizing, self.wanted.effective) if self.sizing else None,
            "thumb": asdict(self.thumb) if self.thumb else None,
            "traced": _traced(self.traced) if self.traced else None,
            "ladder": [rung.to_dict() for rung in self.ladder],
            "takes": list(self.takes),
            "advice": [{"topic": each.topic, "text": each.text} for each in self.advice],
            "learning_rate": asdict(self.rate) if self.rate else None,
            "step_time": asdict(self.step_time) if self.step_time else None,
            "paste": {
                name: {"text": paste.text, "note": paste.note}
                for name, paste in (pastes(self.plan, largest=self.largest) if self.plan else {}).items()
            },
        }


def needs_ladder(wanted: Wanted, largest: int) -> bool:
    """Return whether to show the ladder: it was asked for, nothing fits, or only with much accumulation."""
    if wanted.ladder or not largest:
        return True
    return fewest_microbatches(wanted.effective or 1, largest=largest, ranks=wanted.ranks) > MUCH_ACCUMULATION


def answer(wanted: Wanted, *, largest: int, ladder: tuple[Rung, ...] = (), **origin: Any) -> Answer:
    """Answer from the largest microbatch that fits, wherever it comes from."""
    planned = None
    if largest:
        planned = gives(largest, ranks=wanted.ranks)
        if wanted.effective is not None:
            planned = plan(wanted.effective, largest=largest, ranks=wanted.ranks, uneven=wanted.uneven)
    found = Answer(
        wanted=wanted,
        plan=planned,
        largest=largest or None,
        ladder=ladder if needs_ladder(wanted, largest) else (),
        **origin,
    )
    return _advised(found)


def answer_settings(wanted: Wanted, *, microbatch: int, accumulation: int, largest: int | None = None) -> Answer:
    """Answer the other way round: what settings amount to."""
    planned = gives(microbatch, accumulation=accumulation, ranks=wanted.ranks)
    return _advised(Answer(wanted=wanted, plan=planned, largest=largest))


def answer_kept_microbatch(wanted: Wanted, *, microbatch: int) -> Answer:
    """Answer with the even choices near the target that keep a microbatch."""
    assert wanted.effective is not None
    choices = at_microbatch(wanted.effective, microbatch=microbatch, ranks=wanted.ranks)
    planned = choices[0].plan
    if choices[0].difference:
        exact = plan(wanted.effective, largest=microbatch, ranks=wanted.ranks, uneven=True)
        note = f"Exactly {wanted.effective:,} takes {describe(exact.microbatches)}: --largest instead of --microbatch."
        planned = replace(planned, notes=(note,))
    return _advised(Answer(wanted=wanted, plan=planned, choices=tuple(choices)))


def answer_sizing(wanted: Wanted, sizing: Sizing) -> Answer:
    """Answer from a model's shapes."""
    return answer(wanted, largest=sizing.largest, ladder=sizing.ladder, sizing=sizing, takes=what_it_takes(sizing))


def answer_thumb(wanted: Wanted, thumb: Thumb) -> Answer:
    """Answer from the old rule of thumb."""
    takes = (f"a GPU with {format_gigabytes(thumb.sample_bytes / USABLE)}, by this rule",) if not thumb.largest else ()
    return answer(wanted, largest=thumb.largest, thumb=thumb, takes=takes)


def _advised(found: Answer) -> Answer:
    """Add what follows from the plan itself."""
    wanted = found.wanted
    step_time = fit_step_time(wanted.timings) if wanted.timings else None
    if found.plan is None:
        return replace(found, step_time=step_time)
    rate = None
    if wanted.learning_rate is not None and wanted.tuned_at is not None:
        rate = scale_learning_rate(
            wanted.learning_rate,
            tuned_at=wanted.tuned_at,
            effective=found.plan.effective,
            optimizer=wanted.rule,
            beta2=wanted.beta2,
        )
    advice = advise(
        found.plan,
        largest=found.largest,
        dataset_size=wanted.dataset_size,
        symptom=wanted.symptom,
        gradients_counted=any((found.sizing, found.traced, found.thumb)),
    )
    return replace(found, advice=advice, rate=rate, step_time=step_time)


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


def _model(sizing: Sizing, target: int | None) -> dict[str, Any]:
    return {
        "name": sizing.shape.name,
        "source": sizing.shape.source,
        "num_parameters": sizing.shape.num_parameters,
        "training": asdict(sizing.training),
        "gpu": {"name": sizing.gpu.name, "memory_bytes": sizing.gpu.memory_bytes},
        "fill": sizing.fill,
        "held": asdict(sizing.held),
        "sample_bytes": sizing.held.sample_bytes,
        "accumulations": {str(effective): steps for effective, steps in sizing.accumulations(target).items()},
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
