"""A prediction as a section: memory by kind over the microbatch, one step in time, and the modules at its peak."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brim.cases import Case
from brim.reporting.page.axes import count, memory, unit_for
from brim.reporting.page.charts import bars, both_widths, stacked
from brim.reporting.page.section import Chart, Part, Section, Table

# What the allocator keeps and the driver takes, beside the tensors.
_REST = "cached and driver"


def prediction_section(data: Mapping[str, Any]) -> Section:
    """Return the section of a document `brim.prediction/1`."""
    gpu, case = data["gpu"], Case(data["case"])
    low, high = data["interval"]
    largest = data["largest"]
    timeline = data.get("timeline")
    shown = timeline["microbatch"] if timeline else max(1, largest)
    charts = [_memory_chart(data)]
    if timeline:
        charts.append(_timeline_chart(timeline))
    if data["modules"]:
        charts.append(_modules_chart(data["modules"], shown))
    return Section(
        kind="prediction",
        title=data["workload"],
        subtitle=f"predicted without running · {data['kind']}"
        + (f" · {case}" if case else "")
        + f" · {gpu['name']}, {memory(gpu['memory_bytes'])}",
        facts=[
            ("largest microbatch", count(largest) if largest else "none"),
            ("likely between", f"{low:,} and {high:,}"),
            (f"peak at {shown:,}", memory(_peak_of(data, shown))),
        ],
        charts=charts,
        parts=[Part(title="Peaks", tables=[_peak_table(data)])],
    )


def _memory_chart(data: Mapping[str, Any]) -> Chart:
    gpu = data["gpu"]
    peaks = sorted(data.get("curve") or data["peaks"], key=lambda peak: int(peak["microbatch"]))
    kinds = [kind for kind in peaks[-1]["breakdown"] if any(peak["breakdown"][kind] for peak in peaks)] + [_REST]
    unit = unit_for([gpu["memory_bytes"], *(peak["device_bytes"] for peak in peaks)])
    rows = []
    for peak in peaks:
        held = {**peak["breakdown"], _REST: max(0, peak["device_bytes"] - sum(peak["breakdown"].values()))}
        rows.append(
            {
                "x": peak["microbatch"],
                "tip": f"microbatch {peak['microbatch']:,}: {memory(peak['device_bytes'])} on the device; "
                + ", ".join(f"{kind} {memory(held[kind])}" for kind in kinds),
                **{kind: unit.of(held[kind]) for kind in kinds},
            }
        )
    lines = [{"y": unit.of(gpu["memory_bytes"]), "label": f"{gpu['name']} {memory(gpu['memory_bytes'])}"}]
    if data["largest"]:
        lines.append({"x": data["largest"], "label": f"largest {data['largest']:,}"})
    return Chart(
        title="Memory by kind over the microbatch",
        summary=_memory_summary(data["largest"], gpu["memory_bytes"], peaks),
        **both_widths(stacked, rows, kinds, lines=lines, x_title="microbatch", y_title=f"memory, {unit.name}"),
        table=_kinds_table(peaks, kinds),
    )


def _memory_summary(largest: int, memory_bytes: int, peaks: Sequence[Mapping[str, Any]]) -> str:
    if not largest:
        return "The peak of a step; not even one sample stays below the line."
    says = f"The peak of a step; microbatch {largest:,} is the largest that fits."
    if any(peak["microbatch"] < largest and not _fits(peak, memory_bytes) for peak in peaks):
        says += " Some smaller ones do not: torch's allocator serves some sizes worse."
    if any(not _fits(peak, memory_bytes) and peak["device_bytes"] <= memory_bytes for peak in peaks):
        says += " Sizes that do not fit are drawn without the memory that lies idle between tensors."
    return says


def _fits(peak: Mapping[str, Any], memory_bytes: int) -> bool:
    return bool(peak.get("fits", peak["device_bytes"] <= memory_bytes))


def _verdict(peak: Mapping[str, Any], memory_bytes: int) -> str:
    if _fits(peak, memory_bytes):
        return "fits"
    return "does not fit: fragmented" if peak["device_bytes"] <= memory_bytes else "does not fit"


def _kinds_table(peaks: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> Table:
    columns = ("microbatch", "on the device", *(kind for kind in kinds if kind != _REST))
    return Table(
        caption="Memory by kind at the peak",
        columns=columns,
        numeric=frozenset(columns),
        rows=[
            (
                count(peak["microbatch"]),
                memory(peak["device_bytes"]),
                *(memory(peak["breakdown"][kind]) for kind in columns[2:]),
            )
            for peak in peaks
        ],
    )


def _timeline_chart(timeline: Mapping[str, Any]) -> Chart:
    points = timeline["points"]
    kinds = [kind for kind in points[0]["bytes"] if any(point["bytes"][kind] for point in points)]
    totals = [sum(point["bytes"].values()) for point in points]
    unit = unit_for(totals)
    at = max(range(len(points)), key=lambda index: totals[index])
    rows = [
        {
            "x": point["event"],
            "tip": f"{point['phase']}, in {point['module'] or 'the step itself'}: {memory(total)}; "
            + ", ".join(f"{kind} {memory(point['bytes'][kind])}" for kind in kinds if point["bytes"][kind]),
            **{kind: unit.of(point["bytes"][kind]) for kind in kinds},
        }
        for point, total in zip(points, totals, strict=True)
    ]
    bands = [
        {"x": point["event"], "label": point["phase"]}
        for before, point in zip([None, *points], points, strict=False)
        if before is None or before["phase"] != point["phase"]
    ]
    peak, where = points[at], points[at]["module"] or "the step itself"
    line = {"y": unit.of(totals[at]), "label": f"peak {memory(totals[at])}", "is_right": True}
    return Chart(
        title=f"One step in time, at microbatch {timeline['microbatch']:,}",
        summary=f"Tensors peak at {memory(totals[at])} in the {peak['phase']} pass, in {where}.",
        **both_widths(
            stacked,
            rows,
            kinds,
            lines=[line],
            bands=bands,
            x_title="allocations and frees, in order",
            y_title=f"memory of tensors, {unit.name}",
        ),
        table=_timeline_table(points, totals, kinds),
    )


def _timeline_table(points: Sequence[Mapping[str, Any]], totals: Sequence[int], kinds: Sequence[str]) -> Table:
    columns = ("event", "phase", "module", "in all", *kinds)
    return Table(
        caption="Memory of tensors during one step",
        columns=columns,
        numeric=frozenset({"event", "in all", *kinds}),
        rows=[
            (
                count(point["event"]),
                point["phase"],
                point["module"],
                memory(total),
                *(memory(point["bytes"][kind]) for kind in kinds),
            )
            for point, total in zip(points, totals, strict=True)
        ],
    )


def _modules_chart(modules: Sequence[Mapping[str, Any]], microbatch: int) -> Chart:
    unit = unit_for([module["bytes"] for module in modules])
    named = [(module["name"] or "(the step itself)", module["bytes"]) for module in modules]
    rows = [
        {"label": name, "x": unit.of(size), "text": memory(size), "tip": f"{name}: {memory(size)}"}
        for name, size in named
    ]
    return Chart(
        title=f"What holds the peak, at microbatch {microbatch:,}",
        summary=f"{named[0][0]} holds most: {memory(named[0][1])}.",
        **both_widths(bars, rows, x_title=f"memory at the peak, {unit.name}"),
        table=Table(
            caption="Modules that hold most at the peak",
            columns=("module", "memory"),
            numeric=frozenset({"memory"}),
            rows=[(name, memory(size)) for name, size in named],
        ),
    )


def _peak_table(data: Mapping[str, Any]) -> Table:
    columns = ("microbatch", "allocated", "reserved", "on the device", "")
    limit = int(data["gpu"]["memory_bytes"] * data.get("fill", 1.0))
    return Table(
        caption="Peaks by microbatch",
        columns=columns,
        numeric=frozenset(columns[:4]),
        rows=[
            (
                count(peak["microbatch"]),
                memory(peak["allocated_bytes"]),
                # What the allocator would have reserved by then depends on a device that has more.
                memory(peak["reserved_bytes"] if _fits(peak, limit) else None),
                memory(peak["device_bytes"]),
                _verdict(peak, limit),
            )
            for peak in data["peaks"]
        ],
    )


def _peak_of(data: Mapping[str, Any], microbatch: int) -> int | None:
    return next((peak["device_bytes"] for peak in data["peaks"] if peak["microbatch"] == microbatch), None)
