"""What `brim plan` answers: a plan with where it comes from, what it costs, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from brim.cases import Case
from brim.devices.catalog import Gpu
from brim.planning.advice import Advice, advise
from brim.planning.batch_plan import BatchPlan, check_count, describe, fewest_microbatches, gives, plan
from brim.planning.choices import EvenChoice, at_microbatch
from brim.planning.ladder import MUCH_ACCUMULATION, Rung
from brim.planning.learning_rate import ScaledRate, scale_learning_rate
from brim.planning.measurement import Extrapolation
from brim.planning.profiles import share_of
from brim.planning.sizing import Sizing, a_larger_gpu, rungs_that_fit, what_it_takes
from brim.planning.step_time import StepTime, fit_step_time
from brim.planning.thumb import USABLE, Thumb
from brim.units import format_gigabytes

# The effective batches whose accumulation is always told.
USUAL_EFFECTIVE = (32, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a user wants of a plan, wherever the largest microbatch comes from.

    Attributes:
        effective: Samples per optimizer step; None for as many as fit without accumulation.
        ladder: Show the memory ladder even where it is not needed.
        dataset_size: Samples in the dataset.
        symptom: `oom`, `unstable` or `slow`.
        learning_rate: A rate that works at the effective batch `tuned_at`.
        rule: How it is scaled: `adam` or `sgd`.
        timings: Measured seconds of a step by microbatch.
    """

    effective: int | None = None
    ranks: int = 1
    ladder: bool = False
    dataset_size: int | None = None
    symptom: str | None = None
    learning_rate: float | None = None
    tuned_at: int | None = None
    rule: str = "adam"
    beta2: float = 0.999
    timings: Mapping[int, float] | None = None

    def __post_init__(self) -> None:
        check_count("ranks", self.ranks)
        if self.effective is not None:
            check_count("effective", self.effective)


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


@dataclass(frozen=True, slots=True)
class Taken:
    """What a profile took less than: the largest microbatch that is known to fit."""

    profile: str
    largest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A plan, and all that belongs to it.

    Attributes:
        wanted: What was asked for.
        plan: The answer; None where nothing fits.
        largest: The largest microbatch that fits; None where it is not known.
        choices: Even choices near the target, where a microbatch was to be kept.
        takes: What would make it fit, where nothing does.
        taken: What a profile left of a known largest microbatch.
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
    taken: Taken | None = None
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
    def accumulations(self) -> dict[int, int]:
        """The fewest microbatches on each rank for the usual effective batches and the one that is wanted."""
        if not self.largest:
            return {}
        targets = sorted({*USUAL_EFFECTIVE, *([] if self.wanted.effective is None else [self.wanted.effective])})
        ranks = self.wanted.ranks
        return {
            target: fewest_microbatches(target, largest=self.largest, ranks=ranks)
            for target in targets
            if target >= ranks
        }

    @property
    def followed(self) -> BatchPlan | None:
        """The plan to paste: that of the advice where something is wrong, else the one that was asked for."""
        wrong = ("memory", self.wanted.symptom)
        plans = [advice.plan for advice in self.advice if advice.topic in wrong and advice.plan is not None]
        return plans[-1] if plans else self.plan

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know before the plan is trusted."""
        found = list(self.measurement.warnings) if self.measurement else []
        if self.thumb:
            found.append(self.thumb.leaves_out)
        return tuple(found)


def needs_ladder(wanted: Wanted, largest: int) -> bool:
    """Return whether to show the ladder: it was asked for, nothing fits, or only with much accumulation."""
    if wanted.ladder or not largest:
        return True
    return fewest_microbatches(wanted.effective or 1, largest=largest, ranks=wanted.ranks) > MUCH_ACCUMULATION


def answer_largest(wanted: Wanted, largest: int, *, profile: str | None = None) -> Answer:
    """Answer from the largest microbatch that is known to fit, or from what a profile takes of it."""
    if profile is None:
        return _advised(_planned(wanted, largest))
    return _advised(replace(_planned(wanted, share_of(largest, profile)), taken=Taken(profile, largest)))


def answer_measurement(wanted: Wanted, found: Extrapolation) -> Answer:
    """Answer from a measured point."""
    return _advised(replace(_planned(wanted, found.chosen.batch), measurement=found))


def answer_sizing(wanted: Wanted, sizing: Sizing) -> Answer:
    """Answer from a model's shapes."""
    planned = _planned(wanted, sizing.largest, sizing.ladder)
    return _advised(replace(planned, sizing=sizing, takes=what_it_takes(sizing)))


def answer_thumb(wanted: Wanted, thumb: Thumb) -> Answer:
    """Answer from the old rule of thumb."""
    takes = (f"a GPU with {format_gigabytes(thumb.sample_bytes / USABLE)}, by this rule",) if not thumb.largest else ()
    return _advised(replace(_planned(wanted, thumb.largest), thumb=thumb, takes=takes))


def answer_traced(wanted: Wanted, job: TracedJob) -> Answer:
    """Answer from a trace of the user's own workload."""
    takes: tuple[str, ...] = ()
    if not job.largest:
        lines = (rungs_that_fit(job.ladder), a_larger_gpu(job.device_bytes, fill=job.fill))
        takes = tuple(line for line in lines if line)
    return _advised(replace(_planned(wanted, job.largest, job.ladder), traced=job, takes=takes))


def answer_settings(wanted: Wanted, *, microbatch: int, accumulation: int, largest: int | None = None) -> Answer:
    """Answer the other way round: what settings amount to."""
    planned = gives(microbatch, accumulation=accumulation, ranks=wanted.ranks)
    return _advised(Answer(wanted=wanted, plan=planned, largest=largest))


def answer_kept_microbatch(wanted: Wanted, *, microbatch: int, largest: int | None = None) -> Answer:
    """Answer with the even choices near the target that keep a microbatch."""
    assert wanted.effective is not None
    choices = at_microbatch(wanted.effective, microbatch=microbatch, ranks=wanted.ranks)
    planned = choices[0].plan
    if choices[0].difference and wanted.effective % wanted.ranks == 0:
        fitting = largest or microbatch
        exact = plan(wanted.effective, largest=fitting, ranks=wanted.ranks)
        note = (
            f"Exactly {wanted.effective:,} takes {describe(exact.microbatches)}: plan with --largest {fitting} alone."
        )
        planned = replace(planned, notes=(note,))
    return _advised(Answer(wanted=wanted, plan=planned, largest=largest, choices=tuple(choices)))


def _planned(wanted: Wanted, largest: int, ladder: tuple[Rung, ...] = ()) -> Answer:
    """Plan with the largest microbatch; 0 where nothing fits."""
    planned = None
    if largest and wanted.effective is None:
        planned = gives(largest, ranks=wanted.ranks)
    elif largest and wanted.effective is not None:
        planned = plan(wanted.effective, largest=largest, ranks=wanted.ranks)
    shown = ladder if needs_ladder(wanted, largest) else ()
    return Answer(wanted=wanted, plan=planned, largest=largest or None, ladder=shown)


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
