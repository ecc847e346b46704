"""Findings as a table."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from brim.cases import Case
from brim.findings import LARGEST, Finding, Findings, Verdict
from brim.history import Remembered
from brim.units import format_bytes, format_rate, format_seconds

_BAR_WIDTH = 20
# How many cases are named before a note.
_MOST_NAMED = 3
_NAMES = ("case", "microbatch", "peak", "fill", "samples/s", "probes", "OOMs", "time", "stopped by")
_LEFT_ALIGNED = ("case", "fill", "stopped by")
# What a narrow terminal does without, first to last; the rest is the answer.
_DROPPED_FIRST = ("fill", "OOMs", "time", "probes", "samples/s", "stopped by")
# Wider than any table, in columns.
_UNBOUNDED = 100_000


def findings_table(findings: Findings, console: Console) -> Table:
    """Return the table that ends a search, without the columns that the console has no room for."""
    for num_dropped in range(len(_DROPPED_FIRST)):
        table = _table_without(findings, _DROPPED_FIRST[:num_dropped])
        if _whole_width(table, console) <= console.width:
            return table
    return _table_without(findings, _DROPPED_FIRST)


def history_table(rows: list[Remembered], *, now: float) -> Table:
    """Return the table of `brim history`; goals are told where not all are the usual one."""
    table = Table(box=box.SIMPLE_HEAD)
    has_goals = any(row.goal != LARGEST for row in rows)
    for name in ("when", "workload", "case", "device", *(["goal"] if has_goals else [])):
        table.add_column(name)
    for name in ("microbatch", "peak", "limit", "probes"):
        table.add_column(name, justify="right")
    for row in rows:
        finding = row.finding
        table.add_row(
            f"{format_seconds(max(0.0, now - row.created))} ago",
            escape(row.workload),
            escape(str(finding.case)),
            row.device,
            *([row.goal] if has_goals else []),
            finding.answer,
            *("" if size is None else format_bytes(size) for size in (finding.peak_bytes, row.limit_bytes)),
            str(len(finding.probes)),
        )
    return table


def notes_of(findings: Findings) -> list[str]:
    """Return a line for each finding that has something to say, equal ones once."""
    notes: dict[str, list[Case]] = {}
    for finding in findings:
        if finding.note:
            notes.setdefault(finding.note, []).append(finding.case)
    return [f"{_cases(cases, findings)}{note}" for note, cases in notes.items()]


def _cases(cases: Sequence[Case], findings: Findings) -> str:
    """Say of which cases a note is, where it is not of all."""
    if not any(cases) or (len(cases) == len(findings) > 1):
        return ""
    return f"{len(cases)} cases: " if len(cases) > _MOST_NAMED else f"{', '.join(map(str, cases))}: "


def bar(used_bytes: int | None, limit_bytes: int) -> Text:
    """Return a bar of how full the limit is, with its share in percent."""
    if used_bytes is None:
        return Text("")
    share = used_bytes / limit_bytes
    full = min(_BAR_WIDTH, round(share * _BAR_WIDTH))
    return Text.assemble(("█" * full, "cyan"), ("░" * (_BAR_WIDTH - full), "dim"), f" {share:4.0%}")


def _table_without(findings: Findings, dropped: Collection[str]) -> Table:
    limit_bytes = findings.limit_bytes
    where = findings.device_name if findings.ranks == 1 else f"{findings.ranks} ranks of {findings.device_name}"
    title = f"{findings.workload} ({findings.kind}) on {where}, limit {format_bytes(limit_bytes)}"
    table = Table(title=escape(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    names = [name for name in _NAMES if name not in dropped]
    for name in names:
        table.add_column(
            name,
            justify="left" if name in _LEFT_ALIGNED else "right",
            style="bold" if name == "microbatch" else None,
            # A case that is wider than the terminal goes on in the next line, where cases still differ.
            no_wrap=name != "case",
            overflow="fold",
        )
    for finding in findings:
        cells = dict(zip(_NAMES, _row(finding, limit_bytes), strict=True))
        table.add_row(*(cells[name] for name in names))
    return table


def _whole_width(table: Table, console: Console) -> int:
    """Return how many columns the table takes where nothing is wrapped or cut."""
    return console.measure(table, options=console.options.update_width(_UNBOUNDED)).maximum


def _row(finding: Finding, limit_bytes: int) -> list[str | Text]:
    num_ooms = sum(probe.verdict is Verdict.OOM for probe in finding.probes)
    return [
        escape(str(finding.case)),
        Text(finding.answer, "red") if finding.microbatch is None else finding.answer,
        "" if finding.peak_bytes is None else format_bytes(finding.peak_bytes),
        bar(finding.peak_bytes, limit_bytes),
        "" if finding.rate is None else format_rate(finding.rate),
        str(len(finding.probes)),
        str(num_ooms),
        format_seconds(finding.seconds),
        finding.stopped_by,
    ]
