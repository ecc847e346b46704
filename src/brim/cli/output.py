"""How the command line speaks: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console, RenderableType
from rich.text import Text

from brim.cli.plain import PlainConsole
from brim.errors import BrimError, UnclearError, WorkloadError
from brim.finding import LogObserver, Observer
from brim.findings import Findings
from brim.history import Remembered
from brim.reporting.live import LiveObserver
from brim.reporting.table import findings_table, history_table, notes_of

T = TypeVar("T")


def observer() -> AbstractContextManager[Observer]:
    """Return a live view on a terminal, log lines elsewhere, both on standard error."""
    return live_or_lines(LiveObserver, LogObserver)


@contextmanager
def live_or_lines(
    live: Callable[[Console], AbstractContextManager[T]], lines: Callable[[logging.Logger], T]
) -> Iterator[T]:
    """Yield the live view where standard error is a terminal, else what writes its lines there."""
    console = Console(stderr=True)
    if console.is_terminal:
        with live(console) as view:
            yield view
        return
    with log_lines() as logger:
        yield lines(logger)


@contextmanager
def log_lines() -> Iterator[logging.Logger]:
    """Yield the logger `brim` while its lines go to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LogFormat())
    logger = logging.getLogger("brim")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield logger
    finally:
        logger.removeHandler(handler)


def print_findings(findings: Findings, *, as_json: bool, error: BaseException | None = None) -> None:
    """Print the table, or the JSON document; `error` is what kept the rest from being found."""
    if as_json:
        print_json({**findings.to_dict(), **({} if error is None else {"error": describe(error)})})
        return
    console = results_console()
    console.print(findings_table(findings, console))
    for note in notes_of(findings):
        console.print(Text(note))


def print_history(rows: list[Remembered], *, path: Path, now: float) -> None:
    """Print the history's table."""
    console = results_console()
    console.print(history_table(rows, now=now) if rows else Text(f"Nothing was found yet ({path})."))


@contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """Yield a function that says on standard error what takes a while."""
    console = Console(stderr=True, highlight=False)
    with console.status("") as status:
        yield (lambda line: status.update(f"{line} …")) if console.is_terminal else lambda line: console.print(line)


@contextmanager
def nothing_on_stdout() -> Iterator[None]:
    """Let what is written in the block go to standard error, also by libraries and commands: it is no answer."""
    try:
        number = sys.stdout.fileno()
    except (AttributeError, OSError):  # replaced by something that is no file
        with redirect_stdout(sys.stderr):
            yield
        return
    sys.stdout.flush()
    kept = os.dup(number)
    os.dup2(sys.stderr.fileno(), number)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, number)
        os.close(kept)


def print_text(markup: str) -> None:
    """Print a text with Rich's markup."""
    Console(highlight=False, soft_wrap=True).print(markup)


def print_line(text: str) -> None:
    """Print a line as it is."""
    Console(highlight=False, soft_wrap=True).print(Text(text))


def say(text: str) -> None:
    """Print a line on standard error, where it does not mix with an answer."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text(text))


def print_renderable(renderable: RenderableType) -> None:
    """Print what Rich can draw, and a text whole that is not to be wrapped, which Rich itself forgets."""
    if isinstance(renderable, Text) and renderable.no_wrap:
        results_console().print(renderable, soft_wrap=True)
    else:
        results_console().print(renderable)


def warn(message: str) -> None:
    """Print a warning on standard error."""
    Console(stderr=True, soft_wrap=True).print(Text.assemble(("warning: ", "yellow"), message))


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on standard output."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
    sys.stdout.flush()


def describe(error: BaseException) -> dict[str, str]:
    """Return an error as plain data."""
    return {"type": type(error).__name__, "message": str(error) or "interrupted"}


def print_json_error(error: BaseException) -> None:
    """Print the document `brim.error/1`, unless one with what was found before has been printed."""
    if not getattr(error, "findings", None) and not getattr(error, "is_printed", False):
        print_json({"schema": "brim.error/1", "error": describe(error)})


def print_error(error: BrimError) -> None:
    """Print what the workload printed and raised, then the message."""
    console = Console(stderr=True, soft_wrap=True)
    if isinstance(error, (WorkloadError, UnclearError)) and error.log_tail.strip():
        console.print(Text("The workload's last output:", "dim"))
        console.print(Text(error.log_tail.rstrip(), "dim"))
    if isinstance(error, WorkloadError) and error.traceback:
        console.print(Text(error.traceback.rstrip()))
    console.print(Text.assemble(("Error: ", "bold red"), str(error)))


def results_console(*, stderr: bool = False) -> Console:
    """Return standard output; a file or a pipe has no width of its own, so a table gets what it needs there."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else PlainConsole(stderr=stderr)


class _LogFormat(logging.Formatter):
    """The bare message, with its level where it is a warning or worse."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        return message if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {message}"
