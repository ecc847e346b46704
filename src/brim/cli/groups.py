"""What typer lacks: a command that also has commands of its own, and help in panels without Rich."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup


class DefaultsToFirst(TyperGroup):
    """A group whose first command runs where no other is named: `brim sweep FILE`, `brim plan --effective 80 …`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the first command before arguments that name none; refuse what looks like a mistyped one."""
        if args and args[0] not in self.commands and args[0].isalpha() and not Path(args[0]).exists():
            self._refuse_if_mistyped(ctx, args[0])
        if (args and args[0] not in self.commands) or (not args and not self.no_args_is_help):
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)

    def _refuse_if_mistyped(self, ctx: Any, word: str) -> None:
        import difflib

        for meant in difflib.get_close_matches(word, self.commands, n=1):
            ctx.fail(f"No such command {word!r}. Did you mean {meant!r}?")


class PanelledHelp(TyperCommand):
    """A command whose help lists its options under the panels that they name.

    Rich would draw these, but importing all that typer draws with takes longer than everything else of `--help`.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each panel, in the order in which they first occur."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                panels.setdefault(getattr(parameter, "rich_help_panel", None) or "Options", []).append(record)
        for name, records in panels.items():
            with formatter.section(name):
                formatter.write_dl(records)
