"""The plans of a project as a table."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from brim.project.plan_book import FAILED, PASSED, KeptPlan, PlanBook
from brim.units import format_bytes

_STYLES = {PASSED: "green", FAILED: "red", None: "dim"}


def kept_plans_table(book: PlanBook, path: Path) -> Table:
    """Return the table of `brim plan history`, with ▸ before the plan in use."""
    table = Table(title=escape(str(path)), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("plan", justify="right")
    table.add_column("made")
    for name in ("microbatch", "accumulation", "ranks", "effective"):
        table.add_column(name, justify="right")
    for name in ("expected peak", "ran", "from"):
        table.add_column(name)
    for plan in book.plans:
        is_active = plan.number == book.active_number
        table.add_row(*_row(plan, is_active=is_active), style="bold" if is_active else None)
    return table


def _row(plan: KeptPlan, *, is_active: bool) -> list[str | Text]:
    expected = plan.expected
    peak = f"{format_bytes(expected.peak_low_bytes)} to {format_bytes(expected.peak_high_bytes)}" if expected else "–"
    return [
        f"▸ {plan.number}" if is_active else str(plan.number),
        f"{plan.made:%Y-%m-%d %H:%M}",
        f"{plan.plan.microbatch:,}",
        f"{plan.plan.accumulation:,}",
        f"{plan.plan.ranks:,}",
        f"{plan.plan.effective:,}",
        peak,
        Text(plan.verdict or "not judged", _STYLES[plan.verdict]),
        Text(plan.source),
    ]
