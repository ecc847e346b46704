"""How the command line speaks: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console, RenderableType
from rich.text import Text

from brim.cli.plain import PlainConsole
from brim.devices.catalog import Gpu
from brim.errors import BrimError, UnclearError, WorkloadError
from brim.finding import LogObserver, Observer
from brim.findings import Findings
from brim.history import Remembered
from brim.planning.answer import Answer
from brim.project import PlanBook
from brim.reporting.kept_plans import kept_plans_table
from brim.reporting.live import LiveObserver
from brim.reporting.plan import plan_report
from brim.reporting.prediction import Predicted, answer_table, gpus_table, legend, memory_table, modules_table
from brim.reporting.remarks import remarks
from brim.reporting.table import findings_table, history_table, notes_of
from brim.units import format_bytes

T = TypeVar("T")
# Of more predictions than this, tables of details would bury the answers.
_MOST_DETAILED = 2


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
    console.print(findings_table(findings))
    for note in notes_of(findings):
        console.print(Text(note))


def print_history(rows: list[Remembered], *, path: Path, now: float) -> None:
    """Print the history's table."""
    console = results_console()
    console.print(history_table(rows, now=now) if rows else Text(f"Nothing was found yet ({path})."))


def print_predictions(workload: str, predictions: Sequence[Predicted], *, microbatch: int | None) -> None:
    """Print the answers, then, of few predictions, memory by kind and the modules that hold most."""
    console = results_console()
    is_detailed = len(predictions) <= _MOST_DETAILED
    if microbatch is None or not is_detailed:
        what = "the largest microbatch, with likely bounds" if microbatch is None else f"microbatch {microbatch:,}"
        table = answer_table(predictions, microbatch=microbatch)  # which searches, and may end in an error
        console.print(Text(f"{workload} ({predictions[0].kind}), {what}:", "bold"), soft_wrap=True)
        console.print(table)
    if is_detailed:
        for prediction in predictions:
            _print_prediction(console, prediction, microbatch)
    else:
        console.print(Text("Memory by kind and module is shown of at most two; ask for one case on one GPU."))


def _print_prediction(console: Console, prediction: Predicted, microbatch: int | None) -> None:
    sizes = prediction.shown_sizes() if microbatch is None else [microbatch]
    shown = microbatch or max(1, prediction.largest)
    has_colors = console.color_system is not None and not console.no_color
    console.print(memory_table(prediction, sizes, has_colors=has_colors))
    if microbatch is None:
        for remark in remarks(prediction):
            console.print(Text(remark), soft_wrap=True)
    console.print(legend(prediction.breakdown(shown), shown, has_colors=has_colors))
    console.print(modules_table(prediction.modules(shown), shown))
    advice = prediction.remedy(shown)
    if advice is not None:
        missing_bytes = prediction.missing_bytes(shown)
        lacks = f"lacks {format_bytes(missing_bytes)}" if missing_bytes else "does not fit: fragmented"
        console.print(Text(f"Microbatch {shown:,} {lacks} on {prediction.gpu.name}: {advice}."))


def print_plan(found: Answer, frameworks: Sequence[str]) -> None:
    """Print the arithmetic of a plan, its ladder and advice, then what to paste."""
    console = results_console()
    for part in plan_report(found, frameworks):
        console.print(part)


@contextmanager
def telling() -> Iterator[Callable[[str], None]]:
    """Yield a function that says on standard error what takes a while."""
    console = Console(stderr=True, highlight=False)
    with console.status("") as status:
        yield (lambda line: status.update(f"{line} …")) if console.is_terminal else lambda line: console.print(line)


def print_gpus(gpus: Sequence[Gpu]) -> None:
    """Print the catalog."""
    results_console().print(gpus_table(gpus))


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
    """Print what Rich can draw."""
    results_console().print(renderable)


def print_kept_plans(book: PlanBook, path: Path) -> None:
    """Print the plans of a project."""
    results_console().print(kept_plans_table(book, path))


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
    if not getattr(error, "findings", None):
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


def results_console() -> Console:
    """Return standard output; a file or a pipe has no width of its own, so a table gets what it needs there."""
    console = Console()
    return console if console.is_terminal else PlainConsole()


class _LogFormat(logging.Formatter):
    """The bare message, with its level where it is a warning or worse."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        return message if record.levelno < logging.WARNING else f"{record.levelname.lower()}: {message}"
