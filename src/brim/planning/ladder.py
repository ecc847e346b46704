"""The memory ladder by formulas: what each rung saves, and what fits once it and all before it are climbed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from brim.planning.footprint import (
    EIGHT_BIT_BYTES,
    PRECISIONS,
    Footprint,
    Training,
    activations_bytes,
    checkpointed,
    num_trained,
    sharded,
)
from brim.planning.rungs import (
    CHECKPOINTING,
    CHUNKED,
    EIGHT_BIT,
    FUSED,
    NUM_CHUNKS,
    OFFLOAD,
    OFFLOAD_BYTES,
    PCIE_BYTES_PER_SECOND,
    ZERO,
    RungKind,
    autocast_for,
)
from brim.planning.shapes import ModelShape
from brim.units import format_gigabytes, format_seconds

# A rung, what it does to the footprint, and its cost in words where that depends on the job.
Change = tuple[RungKind, Callable[[Footprint], Footprint], str | None]
# From this many microbatches a step on, cheaper ways than more accumulation are shown.
MUCH_ACCUMULATION = 4
NO_GAIN = "saves nothing here"
# A rung that saves less than this share of the memory is not worth its lines.
NEGLIGIBLE = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One rung, for one job.

    Attributes:
        kind: What it is, whatever the job.
        saved_bytes: What it saves at the ladder's microbatch, on top of the rungs before it.
        largest: The largest microbatch after it.
        basis: `formula` or `traced`.
        cost: What it costs, in words, for this job.
        lines: What to add to this job.
        skipped: Why it was left out; None where it was climbed.
    """

    kind: RungKind
    saved_bytes: int
    largest: int
    basis: str
    cost: str
    lines: str
    skipped: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the rung as plain data."""
        data = {**asdict(self), **asdict(self.kind), "cost": self.cost, "lines": self.lines}
        del data["kind"]
        return data


def climbed(
    kind: RungKind, *, saved_bytes: int, largest: int, basis: str, cost: str | None = None, lines: str | None = None
) -> Rung:
    """Return a rung that was climbed."""
    return Rung(
        kind=kind,
        saved_bytes=saved_bytes,
        largest=largest,
        basis=basis,
        cost=cost or kind.cost,
        lines=lines or kind.lines,
    )


def skipped(kind: RungKind, reason: str, *, largest: int, basis: str) -> Rung:
    """Return a rung that was left out."""
    return replace(climbed(kind, saved_bytes=0, largest=largest, basis=basis), skipped=reason)


def no_gain(kind: RungKind, saved_bytes: int, limit_bytes: int) -> str | None:
    """Return why a rung is not worth climbing by what it saves; None where it is.

    What the fused optimizer saves may show only when later rungs have lowered the peak elsewhere, and it is free.
    """
    if saved_bytes >= (0 if kind is FUSED else NEGLIGIBLE * limit_bytes):
        return None
    return f"saves only {format_gigabytes(saved_bytes)}" if saved_bytes > 0 else NO_GAIN


def climb(
    held: Footprint,
    *,
    shape: ModelShape,
    training: Training,
    limit_bytes: int,
    ranks: int = 1,
    capability: tuple[int, int] = (8, 0),
) -> tuple[Rung, ...]:
    """Return the rungs in the order of cost, each on top of those before it."""
    microbatch = max(1, held.largest(limit_bytes))
    rungs = []
    for kind, change, cost in _changes(shape, training, ranks, capability):
        changed = change(held)
        saved_bytes = held.peak_bytes(microbatch) - changed.peak_bytes(microbatch)
        largest = held.largest(limit_bytes)
        reason = no_gain(kind, saved_bytes, limit_bytes) if changed != held else NO_GAIN
        if reason is not None and changed.largest(limit_bytes) <= largest:
            rungs.append(skipped(kind, reason, largest=largest, basis="formula"))
            continue
        held = changed
        largest = held.largest(limit_bytes)
        rungs.append(climbed(kind, saved_bytes=saved_bytes, largest=largest, basis="formula", cost=cost))
    return tuple(rungs)


def offload_cost(num_parameters: int) -> str:
    """Say what offloading moves each step, and the least time that takes.

    >>> offload_cost(8_030_261_248)
    '32.1 GB over PCIe each step, 1.02 s at best'
    """
    moved = OFFLOAD_BYTES * num_parameters
    return f"{format_gigabytes(moved)} over PCIe each step, {format_seconds(moved / PCIE_BYTES_PER_SECOND)} at best"


def state_changes(*, num_trained: int, eight_bit_bytes: int | None, ranks: int) -> list[Change]:
    """Return the rungs that save weights, gradients and optimizer state, whatever the batch.

    Args:
        num_trained: Parameters that get gradients.
        eight_bit_bytes: What an 8-bit optimizer would hold for them; None where there is nothing to gain.
        ranks: Data-parallel processes to shard over.
    """
    changes: list[Change] = []
    if eight_bit_bytes is not None:
        changes.append((EIGHT_BIT, lambda held: replace(held, optimizer_bytes=eight_bit_bytes, update_bytes=0), None))
    if ranks > 1:
        changes += [(kind, partial(sharded, stage=stage, ranks=ranks), None) for stage, kind in ZERO.items()]
    return [*changes, (OFFLOAD, _offloaded, offload_cost(num_trained // ranks))]


def _changes(shape: ModelShape, training: Training, ranks: int, capability: tuple[int, int]) -> list[Change]:
    """Return every rung that a job can take."""
    trained, precision = num_trained(shape, training), PRECISIONS[training.precision]
    element_bytes = precision.element
    changes: list[Change] = [(FUSED, lambda held: replace(held, update_bytes=0), None)]
    if training.precision == "fp32":
        element_bytes = 2
        halved = activations_bytes(shape, seq_len=training.seq_len, element_bytes=element_bytes)
        changes.append((autocast_for(capability), partial(_autocasted, halved, 2 * shape.num_parameters), None))
    if training.task == "generation":
        changes.append((CHUNKED, _chunked, None))
    block_input_bytes = training.seq_len * shape.hidden * element_bytes
    recompute = partial(checkpointed, num_blocks=shape.layers, block_input_bytes=block_input_bytes)
    changes.append((CHECKPOINTING, recompute, None))
    copy = precision.copy if training.method == "full" else 0
    eight_bit_bytes = (EIGHT_BIT_BYTES + copy) * trained if training.optimizer == "adamw" else None
    return [*changes, *state_changes(num_trained=trained, eight_bit_bytes=eight_bit_bytes, ranks=ranks)]


def _autocasted(halved_bytes: int, copies_bytes: int, held: Footprint) -> Footprint:
    """Keep activations in 16 bits, and a 16-bit copy of every weight from its use to the backward pass."""
    return replace(held, activations_sample_bytes=halved_bytes, parameters_bytes=held.parameters_bytes + copies_bytes)


def _chunked(held: Footprint) -> Footprint:
    return replace(held, logits_sample_bytes=held.logits_sample_bytes // NUM_CHUNKS)


def _offloaded(held: Footprint) -> Footprint:
    return replace(held, optimizer_bytes=0, gradients_bytes=0, update_bytes=0)
