"""One window of accumulation: what its microbatches held, and what came of it over all ranks."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any

import torch

from brim.errors import BrimError, InputError, NonFiniteLossError

Count = int | float | torch.Tensor


class Ending(IntEnum):
    """How a rank's try at a window ended."""

    WHOLE = 0
    OUT_OF_MEMORY = 1
    FAILED = 2
    TOO_SMALL = 3


@dataclass(slots=True, kw_only=True)
class Window:
    """The microbatches since the last update.

    Losses and items may still be on a device: reading them waits for it, so that is left to the window's end.

    Attributes:
        index: Which window of the run it is, from 1.
        length: How many microbatches make it whole.
        losses: The sum of the losses of each microbatch.
        items: The number of items of each microbatch.
        is_reduced: Whether the gradients already are the mean over all ranks.
        microbatch: The samples of its largest microbatch, where a whole batch was cut.
        is_silent: Whether ranks say nothing to each other before its end, so that any may fail.
    """

    index: int
    length: int
    losses: list[float | torch.Tensor] = field(default_factory=list)
    items: list[Count] = field(default_factory=list)
    is_reduced: bool = False
    microbatch: int = 0
    is_silent: bool = False

    @property
    def num_microbatches(self) -> int:
        """How many microbatches came so far, those left out included."""
        return len(self.losses)

    @property
    def is_next_last(self) -> bool:
        """Whether the next microbatch makes the window whole."""
        return self.num_microbatches + 1 >= self.length

    def add(self, loss: float | torch.Tensor, items: Count) -> None:
        """Take a microbatch in."""
        self.losses.append(loss)
        self.items.append(items)

    def place(self, microbatch: int | None = None, *, rank: int | None = None) -> str:
        """Return where a microbatch is, by default the next one, to begin a message with."""
        where = f"Microbatch {microbatch or self.num_microbatches + 1} of window {self.index}"
        return where if rank is None else f"{where} on rank {rank}"

    def report(
        self, *, expected_items: float, is_finished: bool = False, ending: Ending = Ending.WHOLE, is_thrashing: bool
    ) -> RankReport:
        """Read what this rank has to tell the others."""
        losses = [float(loss) for loss in self.losses]
        items = [float(count) for count in self.items]
        bad = next((k for k, loss in enumerate(losses, 1) if not math.isfinite(loss)), 0)
        negative = next((k for k, count in enumerate(items, 1) if not count >= 0), 0)
        return RankReport(
            num_microbatches=len(losses),
            loss=math.fsum(losses) if not bad else losses[bad - 1],
            items=math.fsum(items),
            bad_loss=bad,
            bad_items=negative,
            is_finished=is_finished,
            expected_items=expected_items,
            ending=ending,
            microbatch=self.microbatch,
            is_thrashing=is_thrashing,
        )

    def to_state(self) -> dict[str, Any]:
        """Return the window as plain values."""
        return {
            "index": self.index,
            "length": self.length,
            "losses": [float(loss) for loss in self.losses],
            "items": [float(items) for items in self.items],
            "is_reduced": self.is_reduced,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Window:
        """Return the window that `to_state` was called on."""
        return cls(**{**state, "losses": list(state["losses"]), "items": list(state["items"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What one rank's window holds.

    Attributes:
        loss: The sum of its losses, or the loss that is not finite.
        bad_loss: The first microbatch whose loss is not finite, from 1, or 0.
        bad_items: The first microbatch whose number of items is negative or none at all, from 1, or 0.
        is_finished: Whether the rank has no microbatches left.
        expected_items: The items that its losses were divided by; 0 where it has none yet.
        ending: How its try at the window ended.
        microbatch: The samples of its largest microbatch, where a whole batch was cut.
        is_thrashing: Whether its allocator had to try again.
    """

    num_microbatches: int
    loss: float
    items: float
    bad_loss: int
    bad_items: int
    is_finished: bool
    expected_items: float
    ending: Ending
    microbatch: int
    is_thrashing: bool

    def to_row(self) -> list[float]:
        """Return the report as numbers that ranks can exchange."""
        return [float(getattr(self, each.name)) for each in fields(self)]

    @classmethod
    def from_row(cls, row: Sequence[float]) -> RankReport:
        """Return the report that was sent as `row`."""
        numbers = {each.name: number for each, number in zip(fields(cls), row, strict=True)}
        counts = {name: int(numbers[name]) for name in ("num_microbatches", "bad_loss", "bad_items", "microbatch")}
        return cls(
            **counts,
            loss=numbers["loss"],
            items=numbers["items"],
            is_finished=bool(numbers["is_finished"]),
            expected_items=numbers["expected_items"],
            ending=Ending(int(numbers["ending"])),
            is_thrashing=bool(numbers["is_thrashing"]),
        )


def find_problem(reports: Sequence[RankReport], window: Window, *, uneven: bool) -> BrimError | None:
    """Return why no update can be made of a window, the same on every rank, or None."""
    finished = [rank for rank, report in enumerate(reports) if report.is_finished]
    if not uneven and 0 < len(finished) < len(reports):
        return InputError(
            f"Rank {finished[0]} has finished with {reports[finished[0]].num_microbatches} microbatches in window "
            f"{window.index}, while another rank goes on. Give every rank as many microbatches (DistributedSampler "
            "does), or pass uneven=True."
        )
    for number, report in enumerate(reports):
        rank = number if len(reports) > 1 else None
        if report.bad_items:
            return InputError(f"{window.place(report.bad_items, rank=rank)} was given fewer than 0 items.")
        if report.bad_loss:
            return NonFiniteLossError(
                f"{window.place(report.bad_loss, rank=rank)} has a loss of {report.loss}. The window is dropped and "
                "nothing was updated. Look at that batch, or pass on_nan='skip' to leave such microbatches out.",
                loss=report.loss,
                microbatch=report.bad_loss,
                window=window.index,
                rank=number,
            )
    return None


def check_microbatch(loss_sum: torch.Tensor, items: Count) -> None:
    """Refuse what cannot be the loss of a microbatch with its items."""
    if not isinstance(loss_sum, torch.Tensor) or loss_sum.numel() != 1:
        shape = f" of shape {tuple(loss_sum.shape)}" if isinstance(loss_sum, torch.Tensor) else ""
        raise InputError(
            f"The loss is a {type(loss_sum).__name__}{shape}. Pass one number, the sum over the microbatch's items "
            "(reduction='sum')."
        )
    if not loss_sum.requires_grad:
        raise InputError(
            "The loss needs no gradient. Compute it outside of torch.no_grad(), from a model with parameters to train."
        )
    # What is on a device is looked at when the window ends, so as not to wait for it now.
    if isinstance(items, torch.Tensor):
        is_count = items.numel() == 1
    else:
        is_count = isinstance(items, numbers.Real) and math.isfinite(items) and items >= 0
    if not is_count:
        raise InputError(f"items is {items!r}. Pass how many items the loss is the sum of, one number, at least 0.")
