"""What a ledger holds in the end: storages with their phase, their module and their lifetime.

The values are plain, so that what follows from them (kinds of memory, the allocator's replay, the line between two
traces) is decided without torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from brim.tracing.scratch import Processors, Scratch


class Phase(Enum):
    """When a storage was made."""

    BUILD = "build"
    BATCH = "batch"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


# Kinds of memory, in the order in which they are shown.
KINDS = ("parameters", "gradients", "optimizer", "activations", "inputs", "temporary")
# How many modules are named.
NUM_MODULES = 10
# The least that CUDA's allocator gives, in bytes.
_LEAST_BYTES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """What a library takes for a moment: so much for each sample, up to a microbatch at which it goes another way.

    >>> Workspace(bytes_per_sample=1000, most_samples=370).at(370)
    370000
    """

    bytes_per_sample: int
    most_samples: int

    def at(self, microbatch: int) -> int:
        """Return its bytes; above the microbatch up to which it is taken, one block, so that records correspond."""
        return self.bytes_per_sample * microbatch if microbatch <= self.most_samples else _LEAST_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """One storage: how large, when and where it was made, and what it turned out to be for.

    Attributes:
        float_bytes: Of one value, where they are floating-point numbers; else 0.
        origin: The module whose backward pass made it, if any.
        workspace: What its size follows from where it is a library's own and no tensor.
        scratch: The same where it is a kernel's and depends on the GPU.
    """

    num_bytes: int
    phase: Phase
    module: str
    kind: str | None = None
    float_bytes: int = 0
    origin: str = ""
    workspace: Workspace | None = None
    scratch: Scratch | None = None

    def marked(self, kind: str, module: str) -> Storage:
        """Return the same storage with its kind and its owner; the first mark stays."""
        return self if self.kind is not None else replace(self, kind=kind, module=module)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Every storage, and every birth (number, bytes) and death (number, 0) in order.

    Attributes:
        step_starts: For every step, the number of the first storage that can be its own.
        step_events: For every step, the index of its first event.
        cache_drops: Numbers that stand for no memory: where they die, torch gives all that it has cached back.
        blas_starts: Likewise: where they die, a thread uses cuBLAS for the first time, which takes its workspace.
    """

    storages: tuple[Storage, ...]
    events: tuple[tuple[int, int], ...]
    step_starts: tuple[int, ...] = ()
    step_events: tuple[int, ...] = ()
    cache_drops: frozenset[int] = frozenset()
    blas_starts: tuple[int, ...] = ()

    def events_on(self, processors: Processors | None) -> tuple[tuple[int, int], ...]:
        """Return the events on a GPU, whose kernels may take nothing for a moment; None for a typical one."""
        scratches = enumerate(storage.scratch for storage in self.storages)
        sizes = {number: scratch.bytes_on(processors) for number, scratch in scratches if scratch is not None}
        if processors is None or not sizes:
            return self.events
        return tuple((number, sizes.get(number, num_bytes) if num_bytes else 0) for number, num_bytes in self.events)

    def peak(self) -> tuple[int, int]:
        """Return the most live bytes and the index of the event after which they were live."""
        live = most = at = 0
        for index, (number, num_bytes) in enumerate(self.events):
            live += num_bytes or -self.storages[number].num_bytes
            if live > most:
                most, at = live, index
        return most, at

    def kinds(self) -> tuple[str, ...]:
        """Return the kind of every storage.

        What was marked keeps its mark. What the optimizer made and kept is its state. What the forward pass made and
        the backward pass or the end of the step saw is an activation; what was gone before is temporary.
        """
        deaths = {number: index for index, (number, num_bytes) in enumerate(self.events) if not num_bytes}
        births: dict[int, int] = {}
        backward_starts: list[int] = []
        in_backward = False
        for index, (number, num_bytes) in enumerate(self.events):
            if not num_bytes and number in births:
                continue
            births.setdefault(number, index)
            is_backward = self.storages[number].phase is Phase.BACKWARD
            if is_backward and not in_backward:
                backward_starts.append(index)
            in_backward = is_backward
        return tuple(
            _kind(storage, births.get(number, 0), deaths.get(number), backward_starts)
            for number, storage in enumerate(self.storages)
        )

    def live_at(self, index: int) -> list[int]:
        """Return the numbers of the storages that are live after an event."""
        live: dict[int, None] = {}
        for number, num_bytes in self.events[: index + 1]:
            if num_bytes:
                live[number] = None
            else:
                live.pop(number, None)
        return list(live)

    def breakdown(self) -> dict[str, int]:
        """Return the bytes of every kind at the peak."""
        kinds = self.kinds()
        _, at = self.peak()
        held = Counter(dict.fromkeys(KINDS, 0))
        for number in self.live_at(at):
            held[kinds[number]] += self.storages[number].num_bytes
        return dict(held)

    def modules(self) -> dict[str, int]:
        """Return the bytes that every module holds at the peak, most first; what has no module by what it is."""
        kinds = self.kinds()
        _, at = self.peak()
        held: Counter[str] = Counter()
        for number in self.live_at(at):
            storage = self.storages[number]
            held[storage.module or storage.origin or _outside(storage, kinds[number])] += storage.num_bytes
        return dict(held.most_common())

    def held_longest(self) -> str:
        """Return the module whose storages of the forward pass hold most when all steps are done."""
        held: Counter[str] = Counter()
        for number in self.live_at(len(self.events)):
            storage = self.storages[number]
            if storage.phase in (Phase.FORWARD, Phase.BACKWARD) and storage.kind is None:
                held[storage.module] += storage.num_bytes
        return held.most_common(1)[0][0] if held else ""


def most_live(events: Iterable[tuple[int, int]]) -> int:
    """Return the most bytes that are live at once, given births (number, bytes) and deaths (number, 0).

    >>> most_live([(0, 8), (1, 4), (0, 0), (2, 6)])
    12
    """
    sizes: dict[int, int] = {}
    live = most = 0
    for number, num_bytes in events:
        if num_bytes:
            sizes[number] = num_bytes
            live += num_bytes
            if live > most:
                most = live
        else:
            live -= sizes.get(number, 0)
    return most


def largest_modules(held: Mapping[str, int]) -> dict[str, int]:
    """Return the modules that hold most, and what has no module where it holds as much, of what all hold, most first.

    >>> held = {"(inputs)": 99, **{f"layers.{number}": 90 - number for number in range(20)}}
    >>> list(largest_modules(held))[:2], len(largest_modules(held))
    (['(inputs)', 'layers.0'], 11)
    """
    shown: dict[str, int] = {}
    num_modules = 0
    for name, num_bytes in held.items():
        if num_modules == NUM_MODULES:
            break
        shown[name] = num_bytes
        num_modules += not name.startswith("(")
    return shown


def _outside(storage: Storage, kind: str) -> str:
    """Name what no module made; no module's name has blanks or brackets."""
    if kind == "temporary":
        return f"({storage.phase.value} temporaries)"
    return {"optimizer": "(optimizer state)", "inputs": "(inputs)"}.get(kind, f"({kind} outside of modules)")


def _kind(storage: Storage, birth: int, death: int | None, backward_starts: list[int]) -> str:
    if storage.kind is not None:
        return storage.kind
    if storage.phase is Phase.BUILD:
        return "parameters"
    if storage.phase is Phase.BATCH:
        return "inputs"
    if storage.phase is Phase.OPTIMIZER:
        return "optimizer" if death is None else "temporary"
    if storage.phase is Phase.FORWARD:
        if not backward_starts:
            return "activations"
        next_backward = next((start for start in backward_starts if start > birth), None)
        return "activations" if death is None or (next_backward is not None and death > next_backward) else "temporary"
    return "temporary"
