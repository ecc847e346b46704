"""Where the largest microbatch of a plan comes from: a measurement, a model's shapes, a rule of thumb, a trace."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from brim.planning.answer import TracedJob
from brim.planning.footprint import Footprint, num_trained
from brim.planning.measurement import Extrapolation, step_down
from brim.planning.sizing import Sizing
from brim.planning.thumb import Thumb
from brim.reporting.sums import heading, sums
from brim.units import format_bytes, format_gigabytes


def measured_report(found: Extrapolation) -> Iterator[RenderableType]:
    """Yield the way from a measured point to a batch, the profiles, and the way down."""
    points = ", ".join(f"{each.batch:,} used {format_gigabytes(each.used_bytes)}" for each in found.measured)
    yield heading(f"Measured: {points}")
    sample_bytes = (found.chosen.line_bytes - found.fixed_bytes) / found.chosen.batch
    room = format_gigabytes(found.target_bytes)
    if found.fixed_bytes:
        room = f"({room} − {format_gigabytes(found.fixed_bytes)} held anyway)"
    yield sums(
        [
            (f"{room} ÷ {format_gigabytes(sample_bytes)} a sample", f"{found.linear:,}", "where the line ends"),
            (f"÷ {found.chosen.safety:g} for safety", f"{found.chosen.safe:,}", _why_safe(found)),
            ("power of two", f"{found.chosen.batch:,}", ""),
        ]
    )
    yield heading(f"Expected fill of {format_gigabytes(found.memory_bytes)}")
    yield sums(
        [
            (
                f"{profile.name}, ÷ {profile.safety:g}",
                f"{profile.batch:,}",
                f"{profile.line_bytes / found.memory_bytes:.0%} by the line, "
                f"{profile.worst_bytes / found.memory_bytes:.0%} where memory grows {profile.safety:g} times as fast",
            )
            for profile in found.profiles
        ]
    )
    sizes = " → ".join(f"{size}" for size in step_down(found.chosen.batch))
    yield Text(f"\n  Should it run out of memory: {sizes}, then activation checkpointing.")


def _why_safe(found: Extrapolation) -> str:
    """Return the profile, and where its division says less than is known to fit, that it does not count."""
    if found.linear / found.chosen.safety >= found.chosen.safe:
        return found.chosen.name
    least = "what was measured" if found.chosen.safe > 1 else "the smallest there is"
    return f"{found.chosen.name}, but not below {least}"


def model_report(sizing: Sizing) -> Iterator[RenderableType]:
    """Yield what training a model holds, term by term, and how many samples fit beside it."""
    shape, training, held = sizing.shape, sizing.training, sizing.held
    yield heading(f"{shape.name}, {_count(shape.num_parameters)} parameters")
    yield Text(f"  {shape.source}", "dim")
    yield Text(
        f"  {training.method} fine-tuning in {training.precision} with {training.optimizer}, "
        f"{training.seq_len:,} tokens a sample, {training.task}\n"
    )
    yield sums(_held_rows(held, sizing))


def _held_rows(held: Footprint, sizing: Sizing) -> list[tuple[str, str, str]]:
    shape, limit = sizing.shape, format_gigabytes(sizing.limit_bytes)
    memory = f"{format_gigabytes(sizing.gpu.memory_bytes)} ({format_bytes(sizing.gpu.memory_bytes)})"
    trained = num_trained(shape, sizing.training)

    def each(num_bytes: int) -> str:
        return f"{_count(trained)} × {num_bytes // trained} bytes"

    beside = {"lora": "frozen, and adapters", "qlora": "frozen, blocks in 4 bits, and adapters"}
    rows = [
        (
            "weights",
            format_gigabytes(held.parameters_bytes),
            beside.get(sizing.training.method) or each(held.parameters_bytes),
        ),
        ("gradients", format_gigabytes(held.gradients_bytes), each(held.gradients_bytes)),
        ("optimizer", format_gigabytes(held.optimizer_bytes), each(held.optimizer_bytes)),
        ("before any sample", format_gigabytes(held.state_bytes), ""),
        ("activations a sample", format_gigabytes(held.activations_sample_bytes), f"{shape.layers} blocks"),
    ]
    if held.logits_sample_bytes:
        rows.append(("logits a sample", format_gigabytes(held.logits_sample_bytes), f"{shape.vocab:,} words a token"))
    if held.update_bytes:
        rows.append(("the optimizer's step", format_gigabytes(held.update_bytes), "for a moment, without activations"))
    rows.append((f"{sizing.gpu.name} at fill {sizing.fill:g}", limit, f"of {memory}"))
    if sizing.largest:
        term = f"({limit} − {format_gigabytes(held.state_bytes)}) ÷ {format_gigabytes(held.sample_bytes)}"
        rows.append((term, f"{sizing.largest:,}", "the largest microbatch"))
    else:
        rows.append(("microbatch 1 needs", format_gigabytes(held.peak_bytes(1)), "more than there is"))
    return rows


def _count(number: int) -> str:
    return f"{number / 1e9:.3g} billion" if number >= 1e9 else f"{number / 1e6:.3g} million"


def thumb_report(found: Thumb) -> Iterator[RenderableType]:
    """Yield the old rule's arithmetic."""
    yield heading(f"Rule of thumb for {found.size} billion parameters")
    usable, sample = format_gigabytes(found.usable_bytes), format_gigabytes(found.sample_bytes)
    fits = f"{found.largest:,}" if found.largest else "nothing"
    yield sums(
        [
            ("80% of the memory", usable, ""),
            ("a sample", sample, ""),
            (f"{usable} ÷ {sample}", fits, "a power of two"),
        ]
    )


def traced_report(job: TracedJob) -> Iterator[RenderableType]:
    """Yield what a trace of the workload says about its largest microbatch."""
    case = f", {job.case}" if job.case else ""
    low, high = job.interval
    yield heading(f"{job.workload}{case}, traced for {job.gpu.name}")
    limit = format_gigabytes(job.gpu.memory_bytes * job.fill)
    rows = [(f"{job.gpu.name} at fill {job.fill:g}", limit, f"of {format_gigabytes(job.gpu.memory_bytes)}")]
    rows += [
        (kind, format_gigabytes(num_bytes), f"at microbatch {job.microbatch:,}")
        for kind, num_bytes in job.breakdown.items()
        if num_bytes
    ]
    rows.append(("in all, with cached memory and the driver", format_gigabytes(job.device_bytes), ""))
    if job.largest:
        rows.append(("largest microbatch", f"{job.largest:,}", f"likely between {low:,} and {high:,}"))
    else:
        rows.append(("microbatch 1 lacks", format_gigabytes(job.missing_bytes), ""))
    yield sums(rows)
