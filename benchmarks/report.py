"""The values of the comparison, its tables, and the targets that brim is held to."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

GUIDED = "brim guided"
_PIPE_WIDTH = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One search by one finder.

    Attributes:
        answer: The batch size it gave, or None where it gave none.
        num_probes: Sizes it ran, confirmations included.
        num_ooms: How many of them failed for memory.
        error: The last line of what it said when it failed, or None.
        details: What else it told.
    """

    seconds: float
    answer: int | None = None
    num_probes: int | None = None
    num_ooms: int | None = None
    error: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A finder's runs as one row: the median of the seconds, the worst of the rest."""

    answer: int | None
    num_probes: int | None
    num_ooms: int | None
    seconds: float
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadResult:
    """Everything that was measured on one workload."""

    name: str
    address: str
    sizes: Mapping[str, Any]
    truth: int
    truths: list[int]
    truth_trials: list[Mapping[str, Any]]
    cap: int
    runs: Mapping[str, list[Run]]
    fits_again: Mapping[int, bool]

    def summary(self, finder: str) -> Summary:
        """Return the row of one finder."""
        runs = self.runs[finder]
        answers = [run.answer for run in runs]
        return Summary(
            answer=None if None in answers else min(answer for answer in answers if answer is not None),
            num_probes=_largest(run.num_probes for run in runs),
            num_ooms=_largest(run.num_ooms for run in runs),
            seconds=statistics.median(run.seconds for run in runs),
            error=next((run.error for run in runs if run.error is not None), None),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {
            "address": self.address,
            "sizes": dict(self.sizes),
            "truth": self.truth,
            "truths": self.truths,
            "cap": self.cap,
            "finders": {finder: self._finder_dict(finder) for finder in self.runs},
            "truth_trials": self.truth_trials,
        }

    def _finder_dict(self, finder: str) -> dict[str, Any]:
        summary = self.summary(finder)
        ratio = None if summary.answer is None else round(summary.answer / self.truth, 4)
        runs = [
            {**asdict(run), "fits_again": None if run.answer is None else self.fits_again[run.answer]}
            for run in self.runs[finder]
        ]
        relative = round(summary.seconds / self.summary(GUIDED).seconds, 3)
        return {**asdict(summary), "answer_per_truth": ratio, "seconds_per_guided": relative, "runs": runs}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A figure that brim is held to, and whether it was reached."""

    what: str
    wanted: str
    measured: str
    met: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the target as plain data."""
        return asdict(self)


def check_targets(results: list[WorkloadResult], brim_itself: Mapping[str, Any]) -> list[Target]:
    """Return every target, those of each workload first."""
    targets = [target for result in results for target in _workload_targets(result)]
    seconds, peak_bytes = brim_itself["help_seconds"], brim_itself["parent_peak_bytes"]
    imported = "imported" if brim_itself["help_imports_torch"] else "not imported"
    return [
        *targets,
        Target(what="brim --help", wanted="within 0.3 s", measured=f"{seconds:.2f} s", met=seconds <= 0.3),
        Target(what="brim --help", wanted="torch not imported", measured=imported, met=imported == "not imported"),
        Target(
            what="brim find, parent process",
            wanted="peak below 100 MB",
            measured=f"{peak_bytes / 1e6:.1f} MB",
            met=peak_bytes < 100e6,
        ),
    ]


def _workload_targets(result: WorkloadResult) -> list[Target]:
    runs, row = result.runs[GUIDED], result.summary(GUIDED)
    shares = [(run.answer or 0) / result.truth for run in runs]
    # What one of the bisections saw fit is not above the truth.
    above = [run.answer for run in runs if (run.answer or 0) > max(result.truths)]
    excuse = "; ran again and fitted" if above and all(result.fits_again[size] for size in above) else ""
    what = f"{result.name}, guided"
    targets = [
        Target(what=what, wanted="answer ≥ 97% of truth", measured=f"{min(shares):.1%}", met=min(shares) >= 0.97),
        Target(
            what=what,
            wanted="never above the largest truth",
            measured=f"{max(run.answer or 0 for run in runs)} of {max(result.truths)}{excuse}",
            met=not above,
        ),
        _at_most(what, "probes", row.num_probes, 4),
        _at_most(what, "OOMs", row.num_ooms, 1),
    ]
    # A peer that gave no answer has not won a race.
    peers = [result.summary(finder) for finder in result.runs if not finder.startswith("brim ")]
    fastest = min((peer.seconds for peer in peers if peer.answer is not None), default=None)
    if fastest is None:
        return targets
    measured = f"{row.seconds:.1f} s against {fastest:.1f} s ({row.seconds / fastest:.0%})"
    faster, twice = row.seconds < fastest, row.seconds <= fastest / 2
    return [
        *targets,
        Target(what=what, wanted="faster than every peer", measured=measured, met=faster),
        Target(what=what, wanted="half the fastest peer's time (aim)", measured=measured, met=twice),
    ]


def _at_most(what: str, unit: str, count: int | None, most: int) -> Target:
    met = count is not None and count <= most
    return Target(what=what, wanted=f"at most {most} {unit}", measured=str(count), met=met)


def make_console() -> Console:
    """Return standard output, wide enough for the tables also where it is a file."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_WIDTH)


def print_table(result: WorkloadResult, console: Console) -> None:
    """Print a row for each finder."""
    table = Table(title=f"{result.name}: truth {result.truth}, cap {result.cap}", title_justify="left")
    table.add_column("finder")
    for heading in ("answer", "answer/truth", "probes", "OOMs", "seconds", "× guided"):
        table.add_column(heading, justify="right")
    guided_seconds = result.summary(GUIDED).seconds
    for finder in result.runs:
        row = result.summary(finder)
        share = None if row.answer is None else f"{row.answer / result.truth:.1%}"
        counts = (row.answer, share, row.num_probes, row.num_ooms)
        cells = ["–" if value is None else str(value) for value in counts]
        table.add_row(finder, *cells, f"{row.seconds:.1f}", f"{row.seconds / guided_seconds:.2f}")
    console.print(table)
    for finder in result.runs:
        error = result.summary(finder).error
        if error is not None:
            console.print(Text(f"{finder} failed: {error}"))


def print_targets(targets: list[Target], console: Console) -> None:
    """Print every target with what was measured."""
    table = Table(title="Targets", title_justify="left")
    for heading in ("what", "wanted", "measured", "met"):
        table.add_column(heading)
    for target in targets:
        mark = Text("met", "green") if target.met else Text("NOT MET", "bold red")
        table.add_row(target.what, target.wanted, target.measured, mark)
    console.print(table)
    num_missed = sum(not target.met for target in targets)
    console.print(f"{len(targets) - num_missed} of {len(targets)} targets met.")


def _largest(counts: Iterable[int | None]) -> int | None:
    return max((count for count in counts if count is not None), default=None)
