"""What typer lacks: a command that also has commands of its own, and help in panels without Rich."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

# As many letters of another command's help are listed.
_SHORT_HELP = 80


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


class _Unnamed(typer.Context):
    """The context of a command that is called by its group's name alone."""

    @property
    def command_path(self) -> str:
        """What to type, without the command's own name, which nobody needs to know."""
        return self.parent.command_path if self.parent is not None else super().command_path


class StandsForGroup(TyperCommand):
    """The first command of a group: its help is that of the group, and so lists the other commands."""

    context_class = _Unnamed

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the other commands of the group below everything else."""
        super().format_epilog(ctx, formatter)
        others = [command for command in ctx.parent.command.commands.values() if command is not self]
        with formatter.section("Commands"):
            formatter.write_dl([(other.name, other.get_short_help_str(limit=_SHORT_HELP)) for other in others])


class PanelledHelp(StandsForGroup):
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
