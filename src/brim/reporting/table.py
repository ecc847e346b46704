"""Findings as a table."""

from __future__ import annotations

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from brim.cases import Case
from brim.findings import LARGEST, Finding, Findings, Verdict
from brim.history import Remembered
from brim.units import format_bytes, format_rate, format_seconds

_BAR_WIDTH = 20


def findings_table(findings: Findings) -> Table:
    """Return the table that ends a search."""
    limit_bytes = findings.limit_bytes
    where = findings.device_name if findings.ranks == 1 else f"{findings.ranks} ranks of {findings.device_name}"
    title = f"{findings.workload} ({findings.kind}) on {where}, limit {format_bytes(limit_bytes)}"
    table = Table(title=escape(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("case")
    table.add_column("microbatch", justify="right", style="bold")
    table.add_column("peak", justify="right")
    table.add_column("fill")
    table.add_column("samples/s", justify="right")
    table.add_column("probes", justify="right")
    table.add_column("OOMs", justify="right")
    table.add_column("time", justify="right")
    table.add_column("stopped by")
    for finding in findings:
        table.add_row(*_row(finding, limit_bytes))
    return table


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
            "nothing fits" if finding.microbatch is None else f"{finding.microbatch:,}",
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
    return [f"{', '.join(map(str, cases))}: {note}" if any(cases) else note for note, cases in notes.items()]


def bar(used_bytes: int | None, limit_bytes: int) -> Text:
    """Return a bar of how full the limit is, with its share in percent."""
    if used_bytes is None:
        return Text("")
    share = used_bytes / limit_bytes
    full = min(_BAR_WIDTH, round(share * _BAR_WIDTH))
    return Text.assemble(("█" * full, "cyan"), ("░" * (_BAR_WIDTH - full), "dim"), f" {share:4.0%}")


def _row(finding: Finding, limit_bytes: int) -> list[str | Text]:
    num_ooms = sum(probe.verdict is Verdict.OOM for probe in finding.probes)
    return [
        escape(str(finding.case)),
        Text("nothing fits", "red") if finding.microbatch is None else f"{finding.microbatch:,}",
        "" if finding.peak_bytes is None else format_bytes(finding.peak_bytes),
        bar(finding.peak_bytes, limit_bytes),
        "" if finding.rate is None else format_rate(finding.rate),
        str(len(finding.probes)),
        str(num_ooms),
        format_seconds(finding.seconds),
        finding.stopped_by,
    ]
