"""One probe in this process: build, batch, steps; measured, with a verdict, as plain data."""

from __future__ import annotations

import statistics
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from brim.cases import AskedCase, Case
from brim.devices import Meter
from brim.findings import Race, Verdict
from brim.probing.evidence import UPDATE, Evidence, collect, wrong_size
from brim.probing.racing import run_race
from brim.probing.verdicts import bounded, classify, describe
from brim.workload import Workload, prepare

_HERE = str(Path(__file__).parent)


def run_trial(
    workload_class: type[Workload],
    case: Case,
    microbatch: int,
    *,
    steps: int,
    meter: Meter,
    limit_bytes: int,
    race: Race | None = None,
    report: Callable[[str], None] = lambda phase: None,
    owns_process: bool = False,
) -> dict[str, Any]:
    """Run one probe and return its outcome as plain data.

    Args:
        workload_class: What to run.
        case: The setting of the input shape.
        microbatch: How many samples to ask of `batch`.
        steps: How many whole steps to run on that batch.
        meter: Limits and measures the device's memory.
        limit_bytes: The limit it sets while the workload runs.
        race: Sizes to time in turn after the steps.
        report: Called with the name of each phase as it begins.
        owns_process: Whether this process is the trial's alone and hears no Ctrl-C. Then an interrupt too was raised
            by the workload, and is its error.
    """
    caught = BaseException if owns_process else (Exception, SystemExit)
    evidence, seconds, laps, phase = Evidence(), [], {}, "build"
    asked = AskedCase(case)
    try:
        report(phase)
        meter.limit(limit_bytes)
        with collect() as evidence:
            workload = prepare(workload_class, asked, _torch_device(meter.device_name))
            workload.build()
            phase = "batch"
            report(phase)
            batch = workload.batch(microbatch)
            problem = wrong_size(batch, microbatch, workload.batch)
            if problem is not None:
                return _failure(phase, problem, meter)
            phase = "step"
            for _ in range(steps):
                report(phase)
                started = time.perf_counter()
                workload.step(batch)
                meter.synchronize()
                seconds.append(time.perf_counter() - started)
        memory = meter.peaks()
        if race is not None:
            laps = run_race(
                workload, batch, microbatch, race, synchronize=meter.synchronize, report=lambda: report("step")
            )
    except caught as error:  # the user's code may raise anything
        meter.lift()
        return _raised(error, phase, meter)
    finally:
        meter.lift()
    lacking = evidence.missing(workload.kind)
    if lacking is not None:
        return {**_failure("step", _idle_message(lacking, workload.kind, steps), meter), "idle": True}
    num_samples = evidence.samples(batch, microbatch, steps=steps)
    if num_samples is not None and num_samples < steps * microbatch:
        return {**_failure("step", _partial_message(num_samples, microbatch, steps), meter), "idle": True}
    return {
        "verdict": Verdict.FITS.value,
        "phase": phase,
        "peak_bytes": memory.pop("peak_bytes"),
        "memory": memory,
        "step_seconds": statistics.median(seconds[1:] or seconds),
        "timings": seconds[1:] or seconds,
        "laps": laps,
        "steps": steps,
        "samples": num_samples,
        "calls": evidence.to_dict(),
        "unread": list(asked.unread),
        "missed": list(asked.missed),
    }


def _raised(error: BaseException, phase: str, meter: Meter) -> dict[str, Any]:
    verdict = classify(error, nearly_full=meter.is_nearly_full)
    outcome: dict[str, Any] = {"verdict": verdict.value, "phase": phase, "detail": describe(error)}
    if verdict is Verdict.ERROR:
        lines = traceback.format_exception(type(error), error, _users_part(error.__traceback__))
        outcome["traceback"] = bounded("".join(lines))
    elif meter.peaks().get("num_retries"):
        outcome["memory"] = {"num_retries": meter.peaks()["num_retries"]}
    return outcome


def _failure(phase: str, detail: str, meter: Meter) -> dict[str, Any]:
    return {"verdict": Verdict.ERROR.value, "phase": phase, "detail": detail, "peak_bytes": meter.peaks()["peak_bytes"]}


def _idle_message(lacking: str, kind: str, steps: int) -> str:
    advice = {
        "train": 'Call loss.backward() and optimizer.step() in it, or set kind = "eval".',
        "eval": "Call the model in it.",
        "generate": "Call the model in it.",
    }[kind]
    if lacking == UPDATE:
        advice = (
            "Call optimizer.step() in it; if it steps only every few times, as with accumulation, run more steps: "
            f'steps={4 * steps} (--steps {4 * steps}). Without an optimizer set kind = "eval".'
        )
    return f"{steps} steps of kind {kind!r} ran without a single {lacking}, so nothing was measured. {advice}"


def _partial_message(num_samples: int, microbatch: int, steps: int) -> str:
    return (
        f"the model saw {num_samples} samples in {steps} steps of {microbatch}, so the microbatch was not measured. "
        "Give the whole batch to the model in `step`."
    )


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    """Drop brim's own frames from the top of a traceback."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE):
        trace = trace.tb_next
    return trace


def _torch_device(name: str) -> Any:
    import torch

    return torch.device(name)
