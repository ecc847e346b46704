"""From a model's size and a card to a microbatch, and to what it would take where there is none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from brim.devices.catalog import Gpu, gpus
from brim.devices.device import check_fill
from brim.planning.batch_plan import check_count
from brim.planning.footprint import Footprint, Training, footprint, sharded
from brim.planning.ladder import Rung, climb
from brim.planning.shapes import ModelShape
from brim.units import format_gigabytes

# The most ranks that sharding is proposed for.
_MOST_RANKS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """What training a model takes on a GPU, by formulas.

    Attributes:
        held: What it holds on one rank.
        ladder: What would save memory, cheapest first.
    """

    shape: ModelShape
    training: Training
    gpu: Gpu
    fill: float
    ranks: int
    held: Footprint
    ladder: tuple[Rung, ...]

    @property
    def limit_bytes(self) -> int:
        """What the peak may reach."""
        return int(self.gpu.memory_bytes * self.fill)

    @property
    def largest(self) -> int:
        """The largest microbatch; 0 where not even 1 fits."""
        return self.held.largest(self.limit_bytes)


def size_up(shape: ModelShape, training: Training, *, gpu: Gpu, fill: float = 0.9, ranks: int = 1) -> Sizing:
    """Return what training a model takes on a GPU.

    >>> from brim.devices.catalog import find_gpu
    >>> from brim.planning.shapes import find_model
    >>> size_up(find_model("8b"), Training(seq_len=2048, method="lora"), gpu=find_gpu("a100-80gb")).largest
    3
    """
    check_fill(fill)
    check_count("ranks", ranks)
    held = footprint(shape, training)
    limit_bytes = int(gpu.memory_bytes * fill)
    ladder = climb(
        held, shape=shape, training=training, limit_bytes=limit_bytes, ranks=ranks, capability=gpu.capability
    )
    return Sizing(shape=shape, training=training, gpu=gpu, fill=fill, ranks=ranks, held=held, ladder=ladder)


def what_it_takes(sizing: Sizing) -> tuple[str, ...]:
    """Return what would make microbatch 1 fit, the cheapest first; nothing where it fits."""
    if sizing.largest:
        return ()
    larger = a_larger_gpu(sizing.held.peak_bytes(1), fill=sizing.fill)
    return tuple(
        line for line in (rungs_that_fit(sizing.ladder), *_methods(sizing), _more_ranks(sizing), larger) if line
    )


def rungs_that_fit(ladder: Sequence[Rung]) -> str | None:
    """Say which rungs to climb until something fits; None where nothing ever does."""
    for index, rung in enumerate(ladder):
        if rung.largest:
            titles = [each.kind.title for each in ladder[: index + 1] if each.skipped is None]
            return f"{', '.join(titles)}: then microbatch {rung.largest:,} fits"
    return None


def a_larger_gpu(peak_bytes: int, *, fill: float) -> str:
    """Say how large a GPU would have to be, with the smallest of the catalog that is."""
    needed = math.ceil(peak_bytes / fill)
    larger = [gpu for gpu in gpus().values() if gpu.memory_bytes >= needed and not gpu.is_built_in]
    smallest = min(larger, key=lambda gpu: gpu.memory_bytes, default=None)
    where = f", such as {smallest.name}" if smallest else ", more than any in the catalog"
    return f"a GPU with {format_gigabytes(needed)}{where}"


def _methods(sizing: Sizing) -> list[str]:
    found = []
    for method in {"full": ("lora", "qlora"), "lora": ("qlora",)}.get(sizing.training.method, ()):
        line = _what_fits(sizing, training=replace(sizing.training, method=method))
        if line is not None:
            found.append(f"--method {method}{line}")
    return found


def _more_ranks(sizing: Sizing) -> str | None:
    """Say over how many GPUs weights, gradients and optimizer would have to be sharded, by doubling what there is."""
    ranks = max(2, sizing.ranks)
    while ranks <= _MOST_RANKS:
        held = sizing.held
        for stage in (1, 2, 3):
            held = sharded(held, stage=stage, ranks=ranks)
        largest = held.largest(sizing.limit_bytes)
        with_all = size_up(sizing.shape, sizing.training, gpu=sizing.gpu, fill=sizing.fill, ranks=ranks).ladder
        if largest:
            return f"ZeRO-3 / FSDP over --ranks {ranks}: then microbatch {largest:,} fits on each"
        if ranks > sizing.ranks and (line := rungs_that_fit(with_all)):
            return f"--ranks {ranks} with {line} on each"
        ranks *= 2
    return None


def _what_fits(sizing: Sizing, *, training: Training) -> str | None:
    """Say what fits with another way to train, by itself or with the rungs that it takes."""
    other = size_up(sizing.shape, training, gpu=sizing.gpu, fill=sizing.fill, ranks=sizing.ranks)
    if other.largest:
        return f": then microbatch {other.largest:,} fits"
    line = rungs_that_fit(other.ladder)
    return f" with {line}" if line else None
