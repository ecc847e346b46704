"""The memory ladder traced for a user's own workload, and by formulas on its trace where nothing can be traced."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from brim.cases import Case
from brim.devices.catalog import Gpu
from brim.errors import InputError, TraceError
from brim.planning.answer import TracedJob, Wanted, needs_ladder
from brim.planning.batch_plan import check_shares, fewest_microbatches
from brim.planning.footprint import Footprint
from brim.planning.ladder import NO_GAIN, Rung, climbed, no_gain, skipped, state_changes
from brim.planning.rungs import CHECKPOINTING, CHUNKED, FUSED, autocast_for
from brim.tracing.prediction import Prediction, predict
from brim.tracing.variants import Variant, with_gradients_held, with_rung
from brim.workload import Workload, load

_Tell = Callable[[str], None]
# An optimizer that holds less than this share of the parameters' bytes has nothing left to gain from 8 bits.
_SMALL_STATE = 0.5


def trace_job(
    workload: str, *, gpu: Gpu, case: Case, wanted: Wanted, fill: float = 1.0, tell: _Tell = lambda line: None
) -> TracedJob:
    """Trace a workload on a GPU, with its gradients held where the plan will accumulate, and climb the ladder.

    Args:
        workload: Its address.
        gpu: What it must fit into.
        case: The setting of the input shape.
        wanted: What the plan is for.
        fill: The share of the GPU's memory that the job may use.
        tell: Called with a line before everything that takes a while.
    """
    if wanted.effective is not None:
        check_shares(wanted.effective, ranks=wanted.ranks)
    workload_class = load(workload)
    if workload_class.kind != "train":
        raise InputError(
            f"{workload} is a workload of kind {workload_class.kind}, which has no optimizer step to accumulate for. "
            f"Ask what fits: brim predict {workload} --gpu {gpu.name}"
        )
    tell(f"tracing {workload}")
    prediction = predict(workload_class, gpu=gpu, case=case, fill=fill)
    if _accumulates(wanted, prediction.largest):
        tell("tracing it with gradients held, as accumulation does")
        workload_class = with_gradients_held(workload_class).workload_class
        prediction = predict(workload_class, gpu=gpu, case=case, fill=fill)
    shown = max(1, prediction.largest)
    job = TracedJob(
        workload=workload,
        case=case,
        gpu=gpu,
        fill=fill,
        largest=prediction.largest,
        interval=prediction.interval,
        microbatch=shown,
        device_bytes=prediction.peak(shown).device_bytes,
        breakdown=prediction.breakdown(shown),
        missing_bytes=prediction.missing_bytes(shown),
    )
    if not needs_ladder(wanted, prediction.largest):
        return job
    return replace(job, ladder=_climb(workload_class, prediction, ranks=wanted.ranks, tell=tell))


def _accumulates(wanted: Wanted, largest: int) -> bool:
    return fewest_microbatches(wanted.effective or 1, largest=max(1, largest), ranks=wanted.ranks) > 1


def _climb(workload_class: type[Workload], base: Prediction, *, ranks: int, tell: _Tell) -> tuple[Rung, ...]:
    microbatch = max(1, base.largest)
    best, trained, rungs = base, Variant(workload_class=workload_class), []
    for kind in (FUSED, autocast_for(base.gpu.capability), CHUNKED, CHECKPOINTING):
        tell(f"tracing it with {kind.title}")
        variant = with_rung(kind, workload_class)
        prediction, obstacle = _try(variant, base)
        trained = variant if variant.num_trained else trained
        saved_bytes = 0
        if prediction is not None:
            saved_bytes = best.peak(microbatch).device_bytes - prediction.peak(microbatch).device_bytes
            if prediction.largest < best.largest:
                obstacle = NO_GAIN
            elif prediction.largest == best.largest:
                obstacle = no_gain(kind, saved_bytes, base.gpu.memory_bytes)
        if prediction is None or obstacle is not None:
            rungs.append(skipped(kind, obstacle or "", largest=best.largest, basis="traced"))
            continue
        best, workload_class = prediction, variant.workload_class
        rungs.append(climbed(kind, saved_bytes=saved_bytes, largest=best.largest, basis="traced", lines=variant.lines))
    return (*rungs, *_climb_state(best, microbatch, trained, ranks))


def _try(variant: Variant, base: Prediction) -> tuple[Prediction | None, str | None]:
    """Predict a variant; return the prediction, or why there is none."""
    try:
        prediction = predict(variant.workload_class, gpu=base.gpu, case=base.case, fill=base.fill)
    except TraceError as error:
        return None, variant.obstacle or f"cannot be traced: {error}"
    return (None, variant.obstacle) if variant.obstacle else (prediction, None)


def _climb_state(best: Prediction, microbatch: int, trained: Variant, ranks: int) -> list[Rung]:
    """Climb what saves state, by formulas on the traced breakdown."""
    breakdown = best.breakdown(microbatch)
    held = Footprint(
        parameters_bytes=breakdown["parameters"],
        gradients_bytes=breakdown["gradients"],
        optimizer_bytes=breakdown["optimizer"],
    )
    eight_bit_bytes = None
    if trained.num_trained and held.optimizer_bytes >= _SMALL_STATE * trained.trained_bytes:
        element_bytes = trained.trained_bytes / trained.num_trained
        eight_bit_bytes = math.ceil(held.optimizer_bytes / element_bytes)
    whole_bytes, largest, rungs = held.state_bytes, best.largest, []
    for kind, change, cost in state_changes(
        num_trained=trained.num_trained, eight_bit_bytes=eight_bit_bytes, ranks=ranks
    ):
        changed = change(held)
        saved_bytes = held.state_bytes - changed.state_bytes
        reason = no_gain(kind, saved_bytes, best.gpu.memory_bytes)
        if reason is not None:
            rungs.append(skipped(kind, reason, largest=largest, basis="formula"))
            continue
        held = changed
        largest = max(largest, best.largest_with(whole_bytes - held.state_bytes))
        rungs.append(climbed(kind, saved_bytes=saved_bytes, largest=largest, basis="formula", cost=cost))
    return rungs
