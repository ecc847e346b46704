"""`brim plan history` and `brim plan rollback`: the plans of a project, kept in brim.toml."""

from __future__ import annotations

import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brim.errors import InputError

if TYPE_CHECKING:
    from brim.planning.answer import Answer
    from brim.project import PlanBook


def history_command(
    json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show brim's own traceback on errors.")] = False,
) -> int:
    """List the plans that were kept, and how they ran."""
    from brim.cli.output import print_json, print_line, print_renderable
    from brim.reporting.kept_plans import kept_plans_table

    path, book = _kept()
    if json:
        print_json(book.to_dict(str(path)))
    elif not book.plans:
        print_line(f"No plan is kept in {path} yet. Keep one: brim plan --effective 256 … --save")
    else:
        print_renderable(kept_plans_table(book, path))
    return 0


def rollback_command(
    to: Annotated[int | None, typer.Option(help="Which plan. Default: the last before this that ran well.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show brim's own traceback on errors.")] = False,
) -> int:
    """Go back to the last plan that ran well, or to any other."""
    from brim.cli.output import print_json, print_line
    from brim.planning.batch_plan import equation
    from brim.project import write_book

    path, book = _kept()
    book = book.rolled_back(to)
    write_book(path, book)
    assert book.active is not None
    if json:
        print_json(book.to_dict(str(path)))
    else:
        print_line(f"Plan {book.active_number} is active: {equation(book.active.plan)}.")
    return 0


def _kept() -> tuple[Path, PlanBook]:
    from brim.project import FILE_NAME, find_file, read_book

    path = find_file()
    if path is None:
        raise InputError(
            f"There is no {FILE_NAME} here or above. Keep a plan first: brim plan --effective 256 … --save"
        )
    return path, read_book(path)


def keep(found: Answer, profile: str | None) -> None:
    """Add a plan to the project's file and say so on standard error."""
    from brim.cli.output import say
    from brim.planning.expectation import expectation_of
    from brim.project import FILE_NAME, PlanBook, find_file, read_book, write_book

    assert found.plan is not None
    path = find_file() or Path.cwd() / FILE_NAME
    book = (read_book(path) if path.exists() else PlanBook()).with_plan(
        found.plan,
        made=datetime.now(timezone.utc).replace(microsecond=0),
        source=shlex.join(["brim", *(argument for argument in sys.argv[1:] if argument not in ("--save", "--json"))]),
        profile=profile,
        expected=expectation_of(found),
    )
    write_book(path, book)
    say(f"Kept as plan {book.active_number} in {path}, and active from now on.")
