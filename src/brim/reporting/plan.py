"""A plan as one screen of arithmetic, and as what to paste."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from brim.planning.answer import Answer
from brim.planning.batch_plan import BatchPlan, describe
from brim.planning.frameworks import FRAMEWORKS, paste
from brim.planning.learning_rate import ScaledRate
from brim.planning.profiles import SHARES
from brim.planning.step_time import StepTime
from brim.reporting.ladder import ladder_report
from brim.reporting.sizing import measured_report, model_report, thumb_report, traced_report
from brim.reporting.sums import block, heading, sums
from brim.units import format_seconds


def plan_report(found: Answer, frameworks: Sequence[str]) -> Iterator[RenderableType]:
    """Yield the parts of an answer in the order in which a person would work it out."""
    if found.measurement is not None:
        yield from measured_report(found.measurement)
    if found.sizing is not None:
        yield from model_report(found.sizing)
    if found.thumb is not None:
        yield from thumb_report(found.thumb)
    if found.sizing is not None or found.thumb is not None:
        steps = " · ".join(f"{steps:,} for {effective:,}" for effective, steps in found.accumulations.items())
        yield Text(f"\n  Accumulation on each rank: {steps or 'none fits'}")
    if found.traced is not None:
        yield from traced_report(found.traced)
    if found.plan is not None:
        yield from _plan(found, found.plan)
    if found.takes:
        yield heading("Nothing fits. What it would take, one of")
        yield _lines(found.takes)
    if found.ladder:
        yield from ladder_report(found.ladder, goal=found.ladder_goal)
    if found.rate is not None and found.plan is not None:
        yield from _rate(found.rate, found)
    if found.step_time is not None:
        yield from _step_time(found.step_time, found.plan)
    notes = [*(found.plan.notes if found.plan else ()), *(advice.text for advice in found.advice)]
    if notes or found.warnings:
        yield heading("Good to know")
        if found.warnings:
            yield _lines(found.warnings, style="yellow")
        if notes:
            yield _lines(notes)
    if found.followed is not None:
        yield from _pastes(found.followed, frameworks, largest=found.largest, is_advised=found.followed != found.plan)


def _plan(found: Answer, plan: BatchPlan) -> Iterator[RenderableType]:
    over = f" over {plan.ranks:,} ranks" if plan.ranks > 1 else ""
    if found.choices:
        yield heading(f"Effective batch near {found.wanted.effective:,}{over}, with microbatch {plan.microbatch:,}")
        rows = [(f"{_product(choice.plan)}", f"{choice.plan.effective:,}", choice.missed) for choice in found.choices]
        yield sums(rows)
        return
    yield heading(f"Effective batch {plan.effective:,}{over}")
    if found.wanted.effective is None:
        yield sums([(_product(plan), f"{plan.effective:,}", "microbatch × accumulation × ranks")])
        return
    rows = []
    if found.taken is not None:
        profile, known = found.taken.profile, found.taken.largest
        rows.append((f"{known:,} fit × {SHARES[profile]:g}", f"{found.largest:,}", f"the profile {profile}"))
    if plan.ranks > 1:
        share = plan.effective // plan.ranks
        samples = f"{share:,}" if plan.ranks_are_even else f"{share + 1:,} or {share:,}"
        rows.append((f"{plan.effective:,} samples ÷ {plan.ranks:,} ranks", samples, "samples on each"))
    limit = f", at most {found.largest:,} at once" if found.largest else ""
    num_samples = sum(plan.microbatches)
    rows.append((f"{num_samples:,} samples{limit}", f"{plan.accumulation:,}", _microbatches(plan)))
    if plan.is_even:
        rows.append((_product(plan), f"{plan.effective:,}", "microbatch × accumulation × ranks"))
    else:
        rows.append(
            (describe(plan.microbatches), f"{num_samples:,}", "samples a step" + (" on rank 0" if over else ""))
        )
    yield sums(rows)


def _microbatches(plan: BatchPlan) -> str:
    if len(set(plan.microbatches)) == 1:
        return f"microbatch{'es' if plan.accumulation > 1 else ''} of {plan.microbatch:,}"
    return f"microbatches of {plan.microbatches[-1]:,} or {plan.microbatch:,}"


def _product(plan: BatchPlan) -> str:
    return f"{plan.microbatch:,} × {plan.accumulation:,} × {plan.ranks:,}"


def _rate(rate: ScaledRate, found: Answer) -> Iterator[RenderableType]:
    assert found.plan is not None
    yield heading(f"Learning rate for {found.plan.effective:,} instead of {found.wanted.tuned_at:,}")
    rows = [("learning rate", f"{rate.learning_rate:.3g}", f"instead of {found.wanted.learning_rate:g}")]
    if rate.beta2 is not None:
        rows.append(("β₂", f"{rate.beta2:.6g}", f"instead of {found.wanted.beta2:g}"))
    yield sums(rows)
    yield _lines(rate.reasons)


def _step_time(step_time: StepTime, plan: BatchPlan | None) -> Iterator[RenderableType]:
    yield heading("Step time, from the timings")
    fixed, sample = format_seconds(step_time.fixed_seconds), f"{step_time.sample_seconds * 1000:.3g} ms"
    rows = [
        ("step time", f"{fixed} + {sample} × microbatch", ""),
        (
            "half of the peak rate at",
            f"{step_time.half_rate_microbatch:,.0f}",
            f"of {step_time.peak_rate:,.0f} a second",
        ),
        ("90% of it at", f"{step_time.microbatch_for(0.9):,}", ""),
    ]
    if plan is not None:
        share = step_time.rate(plan.microbatch) / step_time.peak_rate
        rows.append((f"microbatch {plan.microbatch:,} runs at", f"{share:.0%}", "of the peak rate"))
    yield sums(rows)


def _pastes(
    plan: BatchPlan, frameworks: Sequence[str], *, largest: int | None, is_advised: bool
) -> Iterator[RenderableType]:
    for name in frameworks:
        found = paste(plan, name, largest=largest)
        yield heading(f"{found.title}, as advised" if is_advised else found.title)
        yield block(found.text)
        if found.note:
            yield Text(f"  {found.note}", "yellow")
    others = [name for name in FRAMEWORKS if name not in frameworks]
    if others:
        yield Text(f"\nFor others: --framework {', '.join(others)} or all.", "dim")


def _lines(texts: Sequence[str], *, style: str = "") -> Table:
    table = Table.grid(padding=(0, 1))
    for text in texts:
        table.add_row("  •", Text(text, style))
    return table
