"""A plan as a section: its arithmetic, what to paste, the ladder, and what to know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from brim.planning.batch_plan import BatchPlan, equation
from brim.reporting.page.axes import count, memory, plain
from brim.reporting.page.section import Part, Section, Snippet, Table


def plan_section(data: Mapping[str, Any]) -> Section:
    """Return the section of a document `brim.plan/1`."""
    title = "Nothing fits"
    if data["microbatch"] is not None:
        title = equation(BatchPlan(**{key: data[key] for key in ("effective", "accumulation", "ranks")}))
    return Section(
        kind="plan",
        title=title,
        subtitle=f"microbatch × accumulation × ranks = effective batch · {_origin(data)}",
        facts=[
            ("effective batch", count(data["effective"])),
            ("microbatch", count(data["microbatch"])),
            ("accumulation", count(data["accumulation"])),
            ("ranks", count(data["ranks"])),
            ("largest that fits", count(data.get("largest"))),
        ],
        notes=[
            *data["notes"],
            *(f"It would take: {each}" for each in data.get("takes", [])),
            *(each["text"] for each in data.get("advice", [])),
        ],
        tables=list(_tables(data)),
        parts=[Part(title="The memory ladder", tables=[_ladder(data["ladder"])])] if data.get("ladder") else [],
        snippets=[
            Snippet(title=name, text=paste["text"], note=paste["note"]) for name, paste in data.get("paste", {}).items()
        ],
    )


def _origin(data: Mapping[str, Any]) -> str:
    if data.get("traced"):
        return f"from a trace of {data['traced']['workload']} for {data['traced']['gpu']['name']}"
    if data.get("model"):
        return f"from the shapes of {data['model']['name']} on {data['model']['gpu']['name']}"
    if data.get("measurement"):
        return "from a measurement"
    return "from a known largest microbatch"


def _tables(data: Mapping[str, Any]) -> Iterator[Table]:
    if data.get("accumulations"):
        yield Table(
            caption="Accumulation for the usual effective batches",
            columns=("effective batch", "microbatches on each rank"),
            numeric=frozenset({"effective batch", "microbatches on each rank"}),
            rows=[(count(int(effective)), count(steps)) for effective, steps in data["accumulations"].items()],
        )
    if data.get("measurement"):
        yield Table(
            caption="Profiles of the measurement",
            columns=("profile", "batch", "by the line", "at worst"),
            numeric=frozenset({"batch", "by the line", "at worst"}),
            rows=[
                (each["name"], count(each["batch"]), memory(each["line_bytes"]), memory(each["worst_bytes"]))
                for each in data["measurement"]["profiles"]
            ],
        )
    scaled = data.get("learning_rate")
    if scaled:
        yield Table(
            caption=f"The learning rate for this effective batch, {scaled['ratio']:g} times the one it was tuned at",
            columns=("learning rate", "β₂", "why"),
            numeric=frozenset({"learning rate", "β₂"}),
            rows=[(plain(scaled["learning_rate"]), plain(scaled["beta2"]), " ".join(scaled["reasons"]))],
        )


def _ladder(rungs: list[Mapping[str, Any]]) -> Table:
    return Table(
        caption="What saves memory, in the order in which to try it",
        columns=("rung", "saves", "largest microbatch", "costs", "basis"),
        numeric=frozenset({"saves", "largest microbatch"}),
        rows=[
            (
                rung["title"],
                "–" if rung["skipped"] else memory(rung["saved_bytes"]),
                count(rung["largest"]),
                f"left out: {rung['skipped']}" if rung["skipped"] else rung["cost"],
                rung["basis"],
            )
            for rung in rungs
        ],
    )
