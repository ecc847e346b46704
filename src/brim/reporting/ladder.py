"""The memory ladder as a table, and the lines to add."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from brim.planning.ladder import Rung
from brim.reporting.sums import block, heading
from brim.units import format_gigabytes


def ladder_report(rungs: Sequence[Rung], *, goal: int) -> Iterator[RenderableType]:
    """Yield the table, then the lines of every rung up to the first whose largest microbatch reaches the goal."""
    enough = next((rung for rung in rungs if rung.skipped is None and rung.largest >= goal), None)
    yield heading("Memory ladder: cheapest first, each rung on top of those above it")
    yield _table(rungs, enough)
    yield Text("  Slowdowns are those of the sources; none was measured here.", "dim")
    yield heading("Lines to add")
    for rung in rungs:
        if rung.skipped is None:
            yield Text(f"  # {rung.kind.title}", "cyan")
            yield block(rung.lines)
        if rung is enough:
            break


def _table(rungs: Sequence[Rung], enough: Rung | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("rung", no_wrap=True)
    table.add_column("saves", justify="right", no_wrap=True)
    table.add_column("largest then", justify="right", no_wrap=True)
    table.add_column("by")
    table.add_column("slowdown (source)")
    for rung in rungs:
        if rung.skipped is not None:
            table.add_row(Text(rung.kind.title, "dim"), Text("–", "dim"), "", "", Text(rung.skipped, "dim"))
            continue
        largest = Text(f"{rung.largest:,}" if rung.largest else "nothing", "bold" if rung.largest else "red")
        table.add_row(
            Text(rung.kind.title),
            format_gigabytes(rung.saved_bytes),
            Text.assemble(largest, (" ← enough", "green")) if rung is enough else largest,
            rung.basis,
            Text.assemble(rung.cost, (f" ({rung.kind.source})", "dim")),
        )
    return table
