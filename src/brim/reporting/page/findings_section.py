"""Findings as a section: the answers, and for each case every probe and the rate by microbatch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brim.findings import Finding, Findings, Probe, Verdict
from brim.reporting.page.axes import count, memory, rate, unit_for
from brim.reporting.page.charts import bars, both_widths, dots
from brim.reporting.page.rates_chart import rates_chart
from brim.reporting.page.section import Chart, Part, Section, Table
from brim.reporting.table import notes_of
from brim.units import format_seconds

# Cases whose charts are shown at once; the others unfold.
_NUM_OPEN = 2


def findings_section(data: Mapping[str, Any]) -> Section:
    """Return the section of a document `brim.findings/1`."""
    findings = Findings.from_dict(data)
    error = data.get("error")
    notes = notes_of(findings)
    if error is not None:
        notes.append(f"The search was cut short: {error['message']}")
    fits_all = findings.microbatch
    what = _what(findings)
    return Section(
        kind="findings",
        title=findings.workload,
        subtitle=f"the {what}, measured · {findings.kind} on {findings.device_name} · "
        f"{memory(findings.memory_bytes)}, of which {findings.fill:.0%} may be used",
        facts=[
            ("fits every case" if len(findings) > 1 else what, count(fits_all) if fits_all else "none"),
            ("limit", memory(findings.limit_bytes)),
            ("probes", count(sum(len(finding.probes) for finding in findings))),
            ("OOMs", count(sum(_num_ooms(finding) for finding in findings))),
            ("time", format_seconds(sum(finding.seconds for finding in findings))),
        ],
        notes=notes,
        charts=[_answers(findings)] if len(findings) > 1 else [],
        tables=[_answer_table(findings)],
        parts=[_case_part(findings, finding, index < _NUM_OPEN) for index, finding in enumerate(findings)],
    )


def _answers(findings: Findings) -> Chart:
    rows = [
        {
            "label": str(finding.case),
            "x": finding.microbatch or 0,
            "text": finding.answer,
            "tip": f"{finding.case}: {finding.answer}, peak {memory(finding.peak_bytes)}",
        }
        for finding in findings
    ]
    smallest = min(findings, key=lambda finding: finding.microbatch or 0)
    return Chart(
        title=f"The {_what(findings)} of every case",
        summary=f"{len(findings)} cases; {smallest.case} fits the least: {smallest.answer}.",
        **both_widths(bars, rows, x_title="microbatch"),
        table=Table(
            caption=f"The {_what(findings)} of every case",
            columns=("case", "microbatch"),
            numeric=frozenset({"microbatch"}),
            rows=[(str(row["label"]), str(row["text"])) for row in rows],
        ),
    )


def _answer_table(findings: Findings) -> Table:
    columns = ("case", "microbatch", "peak", "share of limit", "samples/s", "probes", "OOMs", "time", "stopped by")
    return Table(
        caption=f"The answers for {findings.workload}",
        columns=columns,
        numeric=frozenset(columns[1:8]),
        rows=[
            (
                str(finding.case),
                finding.answer,
                memory(finding.peak_bytes),
                "–" if finding.peak_bytes is None else f"{finding.peak_bytes / findings.limit_bytes:.0%}",
                rate(finding.rate),
                count(len(finding.probes)),
                count(_num_ooms(finding)),
                format_seconds(finding.seconds),
                finding.stopped_by,
            )
            for finding in findings
        ],
    )


def _case_part(findings: Findings, finding: Finding, is_open: bool) -> Part:
    charts = [_probes_chart(findings, finding)] if finding.probes else []
    rates = rates_chart(finding)
    return Part(
        title=str(finding.case),
        summary=f"{finding.answer}, {len(finding.probes)} probes",
        charts=[*charts, *([rates] if rates else [])],
        is_open=is_open,
    )


def _probes_chart(findings: Findings, finding: Finding) -> Chart:
    unit = unit_for([findings.memory_bytes])
    points = [
        {
            "x": probe.microbatch,
            # A probe that ran out of memory left no peak: it reached what there is.
            "y": unit.of(findings.memory_bytes if probe.peak_bytes is None else probe.peak_bytes),
            "verdict": probe.verdict.value,
            "tip": _probe_tip(probe),
        }
        for probe in finding.probes
    ]
    lines = [
        {"y": unit.of(findings.limit_bytes), "label": f"limit {memory(findings.limit_bytes)}"},
        {"y": unit.of(findings.memory_bytes), "label": f"{findings.device_name} {memory(findings.memory_bytes)}"},
    ]
    return Chart(
        title="Every probe",
        summary=f"{len(points)} probes, {_num_ooms(finding)} of them out of memory; the answer is {finding.answer}.",
        **both_widths(dots, points, lines=lines, x_title="microbatch", y_title=f"peak memory, {unit.name}"),
        table=_probe_table(finding.probes),
    )


def _probe_table(probes: Sequence[Probe]) -> Table:
    columns = ("probe", "microbatch", "verdict", "peak", "step", "samples/s", "why")
    return Table(
        caption="Probes in the order in which they ran",
        columns=columns,
        numeric=frozenset({"probe", "microbatch", "peak", "step", "samples/s"}),
        rows=[
            (
                str(number),
                count(probe.microbatch),
                probe.verdict.value,
                memory(probe.peak_bytes),
                "–" if probe.step_seconds is None else format_seconds(probe.step_seconds),
                rate(probe.samples_per_second),
                probe.detail or "",
            )
            for number, probe in enumerate(probes, 1)
        ],
    )


def _probe_tip(probe: Probe) -> str:
    peak = "peak not known" if probe.peak_bytes is None else f"peak {memory(probe.peak_bytes)}"
    speed = f", {rate(probe.samples_per_second)} samples/s" if probe.samples_per_second else ""
    return f"microbatch {probe.microbatch:,}: {probe.verdict}, {peak}{speed}"


def _what(findings: Findings) -> str:
    return f"{findings.goal} microbatch"


def _num_ooms(finding: Finding) -> int:
    return sum(probe.verdict is Verdict.OOM for probe in finding.probes)
