"""Arithmetic set out as a person would: what, how much, and why."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import indent

from rich.table import Table
from rich.text import Text


def heading(text: str) -> Text:
    """Return the title of a part, with a line above it."""
    return Text(f"\n{text}", "bold")


def block(text: str) -> Text:
    """Return lines to paste: indented, never wrapped, with no space behind them that would break a shell's lines."""
    return Text(indent(text, "  "), no_wrap=True, overflow="ignore")


def sums(rows: Sequence[tuple[str, str, str]]) -> Table:
    """Return rows of a term, its value and a remark."""
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right", style="bold", no_wrap=True)
    table.add_column(style="dim")
    for term, value, remark in rows:
        table.add_row(Text(f"  {term}"), Text(value), Text(remark))
    return table
