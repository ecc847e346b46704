"""What a page is made of: sections of facts, charts and tables, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# A chart for a given width in pixels, in the grammar of Vega-Lite.
ChartSpec = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of texts.

    Attributes:
        caption: What it shows, for everyone who cannot see where it stands.
        numeric: The columns that are aligned as numbers.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A picture, what it says in one sentence, and its numbers as a table.

    Attributes:
        wide: For a screen.
        narrow: For a phone, whose letters would otherwise shrink with the picture.
    """

    title: str
    summary: str
    wide: ChartSpec
    narrow: ChartSpec
    table: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """A text to copy into a job."""

    title: str
    text: str
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Charts and tables under one heading, folded away where there are many."""

    title: str
    summary: str = ""
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    is_open: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One document on the page.

    Attributes:
        kind: `findings`, `prediction`, `plan` or `sweep`.
        subtitle: Where it was measured or what for.
        facts: The few figures to see first, with their names.
        notes: What a reader should know, one line each.
    """

    kind: str
    title: str
    subtitle: str
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    parts: Sequence[Part] = ()
    snippets: Sequence[Snippet] = ()
