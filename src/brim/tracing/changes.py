"""Changes to a job that save memory, each as what it makes of the sizes of a record's storages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from brim.tracing.record import Phase, Record, Storage
from brim.tracing.repetition import Repetition, repetition_of

_FLOAT32_BYTES = 4
# The loop of torch's Adam holds a root and its quotient, and still the last parameter's: `_single_tensor_adam`.
_NUM_LOOP_TEMPORARIES = 3
# How deep into names such as `model.layers.0.mlp` blocks to recompute are looked for.
_MOST_DEPTH = 5
# Into how many segments a model is cut at most; what is kept grows again long before.
_MOST_SEGMENTS = 64


@dataclass(frozen=True, kw_only=True)
class TracedJob:
    """A record with what its storages turned out to be.

    Attributes:
        is_training: Whether it has a backward pass.
    """

    record: Record
    is_training: bool

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kind of every storage."""
        return self.record.kinds()

    @cached_property
    def sizes(self) -> list[int]:
        """The bytes of every storage as it is."""
        return [storage.num_bytes for storage in self.record.storages]

    @cached_property
    def repetition(self) -> Repetition | None:
        """How the last step is repeated."""
        return repetition_of(self.record)

    @cached_property
    def recomputes(self) -> bool:
        """Whether modules run again in the backward pass, as under checkpointing."""
        return any(
            storage.phase is Phase.BACKWARD and storage.module and storage.kind is None
            for storage in self.record.storages
        )

    @cached_property
    def recomputable(self) -> frozenset[int]:
        """The activations that checkpointing need not keep, at best.

        Segments are recomputed one at a time: what is handed from each to the next is kept, and the largest of them is
        there whole. They are runs of modules; which ones need least is tried out.
        """
        activations = [number for number, kind in enumerate(self.kinds) if kind == "activations"]
        first = self.record.step_starts[-1] if self.record.step_starts else 0
        names = {number: self.record.storages[number].module for number in activations if number >= first}
        inside = [number for number, name in names.items() if name]
        choices = [set(inside)]
        for depth in range(1, _MOST_DEPTH + 1):
            blocks = _runs(inside, {number: ".".join(name.split(".")[:depth]) for number, name in names.items()})
            choices += [_kept(segments, names, self.sizes) for segments in _cuts(blocks, self.sizes)]
        kept = min(choices, key=lambda numbers: sum(self.sizes[number] for number in numbers))
        outside = {number for number, name in names.items() if not name}  # no module to run again
        return frozenset(activations) - kept - outside

    def events(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """Return the births and deaths with other sizes; the birth of what has none is nothing."""
        return [(number, sizes[number] if num_bytes else 0) for number, num_bytes in self.record.events]

    def peak_bytes(self, sizes: Sequence[int]) -> int:
        """Return the most that is live at once."""
        live = most = 0
        for number, num_bytes in self.record.events:
            live += sizes[number] if num_bytes else -sizes[number]
            most = max(most, live)
        return most

    def share_of_float32(self, *kinds: str) -> float:
        """Return the share of the peak that is float32 and of one of these kinds, or of any."""
        most, at = self.record.peak()
        held = sum(
            self.sizes[number]
            for number in self.record.live_at(at)
            if is_float32(self.record.storages[number]) and (not kinds or self.kinds[number] in kinds)
        )
        return held / most if most else 0.0

    def resized(self, sizes: Sequence[int], resize: Callable[[Storage, str, int], int]) -> list[int]:
        """Return sizes after a change that looks at one storage at a time."""
        storages = zip(self.record.storages, self.kinds, sizes, strict=True)
        return [resize(storage, kind, size) for storage, kind, size in storages]


def is_float32(storage: Storage) -> bool:
    """Return whether a storage holds float32."""
    return storage.float_bytes == _FLOAT32_BYTES


def without_foreach(job: TracedJob, sizes: Sequence[int]) -> list[int]:
    """Leave of what the optimizer's step takes for a moment what one parameter after the other needs."""
    passing = [number for number, kind in enumerate(job.kinds) if _passes_in_optimizer(job, number, kind)]
    changed = list(sizes)
    for number in passing:
        changed[number] = 0
    if passing:
        largest = max(passing, key=lambda number: sizes[number])
        changed[largest] = _NUM_LOOP_TEMPORARIES * sizes[largest]
    return changed


def with_eight_bits(job: TracedJob, sizes: Sequence[int]) -> list[int]:
    """Hold the optimizer's state in a byte a value; such optimizers update in place, one parameter after the other."""

    def resize(storage: Storage, kind: str, size: int) -> int:
        if kind == "optimizer" and storage.float_bytes:
            return size // storage.float_bytes
        return 0 if kind == "temporary" and storage.phase is Phase.OPTIMIZER else size

    return job.resized(sizes, resize)


def with_autocast(job: TracedJob, sizes: Sequence[int]) -> list[int]:
    """Halve float32 activations and what passes beside them; add the half-precision copies of weights and inputs."""

    def resize(storage: Storage, kind: str, size: int) -> int:
        if not is_float32(storage):
            return size
        if kind in ("parameters", "inputs"):
            return size + size // 2
        passes = kind == "temporary" and storage.phase is not Phase.OPTIMIZER
        return size // 2 if kind == "activations" or passes else size

    return job.resized(sizes, resize)


def in_half_precision(job: TracedJob, sizes: Sequence[int]) -> list[int]:
    """Halve all that is float32, weights too, but for an optimizer's state that is in fewer bits by now."""

    def resize(storage: Storage, kind: str, size: int) -> int:
        is_smaller = kind == "optimizer" and size < storage.num_bytes
        return size // 2 if is_float32(storage) and not is_smaller else size

    return job.resized(sizes, resize)


def sharded(job: TracedJob, sizes: Sequence[int], *, num_ranks: int) -> list[int]:
    """Divide weights, gradients, the optimizer's state and its temporaries; the largest module is gathered whole."""
    modules: Counter[str] = Counter()
    names = [storage.module or f"({number})" for number, storage in enumerate(job.record.storages)]
    for name, kind, size in zip(names, job.kinds, sizes, strict=True):
        if kind == "parameters":
            modules[name] += size
    largest = max(modules, key=lambda name: modules[name], default=None)
    changed = list(sizes)
    for number, (name, kind) in enumerate(zip(names, job.kinds, strict=True)):
        if kind in ("parameters", "gradients", "optimizer") or _passes_in_optimizer(job, number, kind):
            gathered_bytes = sizes[number] if kind == "parameters" and name == largest else 0
            changed[number] = -(-sizes[number] // num_ranks) + gathered_bytes
    return changed


def checkpointed(job: TracedJob, sizes: Sequence[int]) -> list[int]:
    """Drop the activations that are made again in the backward pass."""
    changed = list(sizes)
    for number in job.recomputable:
        changed[number] = 0
    return changed


def _cuts(blocks: list[list[int]], sizes: Sequence[int]) -> Iterator[list[list[int]]]:
    """Yield segments of whole blocks, as even as they come, from one to many."""
    total_bytes = sum(sizes[number] for block in blocks for number in block)
    for num_segments in range(1, min(len(blocks), _MOST_SEGMENTS) + 1):
        segments: list[list[int]] = []
        room_bytes = 0.0
        for block in blocks:
            block_bytes = sum(sizes[number] for number in block)
            if not segments or block_bytes > room_bytes:
                segments.append([])
                room_bytes = total_bytes / num_segments
            segments[-1].extend(block)
            room_bytes -= block_bytes
        yield segments


def _kept(segments: list[list[int]], names: dict[int, str], sizes: Sequence[int]) -> set[int]:
    """Return the largest segment and what every other hands on: the largest storage of the module that ends it."""
    kept = set(max(segments, key=lambda segment: sum(sizes[number] for number in segment)))
    for segment in segments[:-1]:
        ending = _runs(segment, names)[-1]
        kept.add(max(ending, key=lambda number: sizes[number]))
    return kept


def _runs(numbers: Sequence[int], names: dict[int, str]) -> list[list[int]]:
    """Return the storages in runs of the same name."""
    return [list(run) for _, run in groupby(numbers, key=lambda number: names[number])]


def _passes_in_optimizer(job: TracedJob, number: int, kind: str) -> bool:
    return kind == "temporary" and job.record.storages[number].phase is Phase.OPTIMIZER
