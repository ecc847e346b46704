"""What tensors held at the peak and when memory ran out, from every block that torch's allocator handed out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

# What a tag is made of: the phase, the count of backward passes, the number of a module.
_MODULE_BITS, _PASS_BITS = 20, 10
_MOST_MODULES, _MOST_PASSES = 1 << _MODULE_BITS, 1 << _PASS_BITS

# Address, bytes, tag: as driver/ledger.c writes them. Bytes are negative where a block is released, and 0 where a
# request was refused, which then stands for the address.
Entry = tuple[int, int, int]


class Phase(IntEnum):
    """What ran when a block was handed out."""

    OUTSIDE = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3


def tag_of(phase: Phase, num_passes: int, module: int) -> int:
    """Return the number by which the driver marks blocks; `module` is 0 outside of modules."""
    return phase << (_PASS_BITS + _MODULE_BITS) | num_passes % _MOST_PASSES << _MODULE_BITS | module % _MOST_MODULES


@dataclass(slots=True, eq=False)
class Block:
    """One block of torch's allocator.

    Attributes:
        born: The number of backward passes that had begun when it was handed out.
        died: The same when it was released; None while it lives.
        kind: What it was found to be for.
        owner: The module that it belongs to, where that is not the one that ran.
    """

    num_bytes: int
    phase: Phase
    born: int
    module: int
    died: int | None = None
    kind: str | None = None
    owner: str | None = None


@dataclass(slots=True)
class Refused:
    """A request that did not fit, and what lived then."""

    num_bytes: int
    held: tuple[Block, ...]


@dataclass(slots=True)
class Ledger:
    """The blocks of one device."""

    live: dict[int, Block] = field(default_factory=dict)
    peak_bytes: int = 0
    peak: tuple[Block, ...] = ()
    refused: Refused | None = None
    live_bytes: int = 0

    def add(self, entries: Sequence[Entry]) -> None:
        """Follow what happened, in order."""
        top = self._top_of(entries)
        for index, (address, num_bytes, tag) in enumerate(entries):
            self._follow(address, num_bytes, tag)
            if index == top:
                self.peak_bytes, self.peak = self.live_bytes, tuple(self.live.values())

    def _top_of(self, entries: Sequence[Entry]) -> int | None:
        """Return after which entry more is live than ever before; None if that never happens."""
        live, most, top = self.live_bytes, self.peak_bytes, None
        for index, (_, num_bytes, _) in enumerate(entries):
            live += num_bytes
            if live > most:
                most, top = live, index
        return top

    def _follow(self, address: int, num_bytes: int, tag: int) -> None:
        num_passes = tag >> _MODULE_BITS & (_MOST_PASSES - 1)
        if num_bytes > 0:
            phase = Phase(tag >> (_PASS_BITS + _MODULE_BITS))
            self.live[address] = Block(num_bytes, phase, num_passes, tag & (_MOST_MODULES - 1))
        elif num_bytes == 0:
            self.refused = Refused(address, tuple(self.live.values()))
        elif (block := self.live.pop(address, None)) is not None:
            block.died = num_passes
        self.live_bytes += num_bytes

    def mark(self, addresses: Iterable[int], kind: str, owner: str | None = None) -> None:
        """Say what blocks are for that live now; the first word stays."""
        for address in addresses:
            block = self.live.get(address)
            if block is not None and block.kind is None:
                block.kind, block.owner = kind, owner


def kind_of(block: Block, *, trains: bool) -> str:
    """Return what a block was for; it may still live."""
    if block.kind is not None:
        return block.kind
    if block.phase is Phase.OPTIMIZER:
        return "optimizer" if block.died is None else "temporary"
    if block.phase is Phase.BACKWARD:
        return "temporary"
    if block.phase is Phase.OUTSIDE and block.died is None:
        return "inputs"
    if not trains:
        return "activations" if block.phase is Phase.FORWARD else "inputs"
    return "temporary" if block.died == block.born else "activations"


def held(blocks: Iterable[Block], *, name_of: Callable[[int], str], trains: bool) -> dict[str, Any]:
    """Return what blocks hold in all, by kind and by module."""
    by_kind: Counter[str] = Counter()
    by_module: Counter[str] = Counter()
    for block in blocks:
        kind = kind_of(block, trains=trains)
        by_kind[kind] += block.num_bytes
        by_module[block.owner or name_of(block.module) or f"({_outside(block, kind)})"] += block.num_bytes
    return {
        "bytes": sum(by_kind.values()),
        "by_kind": dict(by_kind),
        "by_module": dict(by_module.most_common()),
    }


def _outside(block: Block, kind: str) -> str:
    """Name what no module made."""
    if kind == "temporary":
        return f"{block.phase.name.lower()} temporaries"
    return {"optimizer": "optimizer state", "inputs": "inputs"}.get(kind, f"{kind} outside of modules")
