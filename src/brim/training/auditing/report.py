"""What an audit found, window by window, as values and as text."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from brim.training.auditing.causes import ADVICE, INHERENT, Cause

_WIDTH = 100
# Below this, four decimals would show little but zeros.
_SMALLEST = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedWindow:
    """One window of the loop against its full batch.

    Attributes:
        index: Which window of the run it is, from 1.
        num_microbatches: How many microbatches it has on this rank.
        items: How many items they hold, over all ranks.
        ratio: The loop's gradient as a multiple of the full batch's, along it; 1 where they are equal.
        difference: How far the two are apart, as a share of the full batch's.
        one_pass_difference: How far the full batch's gradient, summed over its microbatches, is from that of a single
            forward pass over all of them; None where they do not make one batch, or are one.
        causes: Why they differ; empty where they do not.
    """

    index: int
    num_microbatches: int
    items: float
    ratio: float
    difference: float
    one_pass_difference: float | None
    causes: tuple[Cause, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What an audit found.

    Attributes:
        windows: Every window of the loop.
        accumulation: Microbatches of a whole window.
        num_ranks: Over how many ranks the loop ran.
        notes: What else there is to know, a sentence each.
    """

    windows: tuple[AuditedWindow, ...]
    accumulation: int
    num_ranks: int = 1
    notes: tuple[str, ...] = ()

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Why windows differ from their full batches, each cause once, in order of appearance."""
        return tuple(dict.fromkeys(cause for window in self.windows for cause in window.causes))

    @property
    def is_right(self) -> bool:
        """Whether the loop makes no mistake. What no loop can make equal, such as BatchNorm, does not count."""
        return all(cause in INHERENT for cause in self.causes)

    def __str__(self) -> str:
        names = ["window", "microbatches", "items", "ratio", "difference", "in one pass", "cause"]
        rows = [dict(zip(names, names, strict=True)), *(_cells(window) for window in self.windows)]
        if not INHERENT.intersection(self.causes):
            rows = [{name: cell for name, cell in row.items() if name != "in one pass"} for row in rows]
        widths = {name: max(len(row[name]) for row in rows) for name in rows[0]}
        lines = ["  ".join(cell.rjust(widths[name]) for name, cell in row.items() if name != "cause") for row in rows]
        lines = [f"{line}  {row['cause']}" for line, row in zip(lines, rows, strict=True)]
        return "\n".join([*lines, "", *self._sentences()])

    def _sentences(self) -> list[str]:
        said = [f"{cause}: {self._measured(cause)}{ADVICE[cause]}" for cause in self.causes]
        if self.is_right:
            verdict = "The loop makes no mistake" if self.causes else "Every window has the gradient of its full batch"
            largest = max(window.difference for window in self.windows)
            said.insert(0, f"{verdict}; the largest difference is {largest:.0e}.")
        return [
            line
            for sentence in (*said, *self.notes)
            for line in textwrap.wrap(sentence, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        ]

    def _measured(self, cause: Cause) -> str:
        """Return how much a cause matters that only a forward pass over the full batch shows."""
        found = [window.one_pass_difference for window in self.windows if cause in window.causes]
        shares = [share for share in found if share is not None]
        if cause not in INHERENT or not shares:
            return ""
        return f"one forward pass over the full batch has a gradient up to {_as_share(max(shares))} apart; "


def _cells(window: AuditedWindow) -> dict[str, str]:
    one_pass = window.one_pass_difference
    return {
        "window": str(window.index),
        "microbatches": str(window.num_microbatches),
        "items": f"{window.items:,.10g}",
        "ratio": f"{window.ratio:.4f}"
        if window.ratio == 0 or abs(window.ratio) >= _SMALLEST
        else f"{window.ratio:.1e}",
        "difference": _as_share(window.difference),
        "in one pass": "–" if one_pass is None else _as_share(one_pass),
        "cause": ", ".join(map(str, window.causes)) or "–",
    }


def _as_share(share: float) -> str:
    """Return a share as percent, or as a power of ten where it is tiny.

    >>> _as_share(0.5), _as_share(3.2e-8)
    ('50.0%', '3e-08')
    """
    return f"{share:.1%}" if share >= _SMALLEST else f"{share:.0e}"
