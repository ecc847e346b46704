"""Tables for what is no terminal: columns of words, as wide as they are, with nothing drawn and nothing behind them."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

# Wider than any table, in columns: a pipe has no edge at which to wrap or cut.
_WIDTH = 100_000
_GAP = 2


class PlainConsole(Console):
    """Standard output, or standard error, that is a pipe or a file."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(width=_WIDTH, stderr=stderr)
        self._has_written = False

    def print(self, *objects: Any, **options: Any) -> None:
        """Write objects without the blanks that Rich puts behind lines."""
        with self.capture() as captured:
            for each in objects:
                self._print_plain(each, **options)
        lines = captured.get().split("\n")
        self.file.write("\n".join(line.rstrip() for line in lines))
        self.file.flush()
        self._has_written = True

    def _print_plain(self, each: Any, **options: Any) -> None:
        if isinstance(each, Table):
            if each.title:
                if self._has_written:
                    super().print()
                # Over a narrow table Rich would wrap it.
                title = each.title if isinstance(each.title, Text) else Text.from_markup(str(each.title))
                super().print(title, **options)
                each.title = None
            _make_plain(each)
        super().print(each, **options)


def _make_plain(table: Table) -> None:
    """Take from a table what is drawn for the eye, and what makes its rows several lines."""
    if table.box is not None:
        table.box = None
        table.pad_edge = False
        table.padding = (0, _GAP, 0, 0)
    for column in table.columns:
        column.no_wrap = True
        if isinstance(column.header, str):
            column.header = column.header.replace("\n", " ")
