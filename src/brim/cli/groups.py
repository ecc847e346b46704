"""A command that also has commands of its own."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class DefaultsToFirst(TyperGroup):
    """A group whose first command runs where no other is named: `brim sweep FILE`, `brim plan --effective 80 …`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the first command before arguments that name none."""
        if (args and args[0] not in self.commands) or (not args and not self.no_args_is_help):
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)
