"""How `brim predict` and `brim gpus` speak: answers, memory by kind and by module, the catalog."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from brim.cli.output import describe, print_json, results_console, say
from brim.devices.catalog import Gpu
from brim.errors import BrimError
from brim.finding.predicted import PhantomPrediction
from brim.phantom import Torch
from brim.reporting.prediction import Predicted, answer_table, gpus_table, legend, memory_table, modules_table
from brim.reporting.remarks import remarks
from brim.units import format_bytes

# Of more predictions than this, tables of details would bury the answers.
_MOST_DETAILED = 2


def print_predictions(workload: str, predictions: Sequence[Predicted], *, microbatch: int | None) -> None:
    """Print the answers, then, of few predictions, memory by kind and the modules that hold most.

    Args:
        workload: Its address.
        predictions: The answers.
        microbatch: The size that was asked for; None for the largest.
    """
    console = results_console()
    is_detailed = len(predictions) <= _MOST_DETAILED
    read = {name for each in predictions for name in each.case if name not in each.observed.unread}
    if microbatch is None or not is_detailed:
        what = "the largest microbatch, with likely bounds" if microbatch is None else f"microbatch {microbatch:,}"
        table = answer_table(predictions, microbatch=microbatch)  # which searches, and may end in an error
        console.print(Text(f"{workload} ({predictions[0].kind}), {what}:", "bold"))
        console.print(table)
    if is_detailed:
        for prediction in predictions:
            _print_prediction(console, prediction, microbatch, read=read)
    else:
        notes = [note for each in predictions for note in remarks(each, is_searched=False, read=read)]
        for note in dict.fromkeys(notes):
            console.print(Text(note))
        console.print(Text("Memory by kind and module is shown of at most two; ask for one case on one GPU."))


def print_on_phantom(
    label: str, predictions: Sequence[PhantomPrediction], *, microbatch: int | None, torch: Torch
) -> None:
    """Print what runs on phantoms came to: the answers, then, of few, memory by kind and by module."""
    console = results_console()
    first = predictions[0]
    what = "the largest microbatch, with likely bounds" if microbatch is None else f"microbatch {microbatch:,}"
    console.print(Text(f"{label} ({first.kind}) on a phantom GPU with torch {torch.version}, {what}:", "bold"))
    console.print(answer_table(predictions, microbatch=microbatch))
    remarks_shown: dict[str, None] = {}
    for prediction in predictions:
        if len(predictions) <= _MOST_DETAILED:
            _print_details(console, prediction, microbatch)
        remarks_shown.update(dict.fromkeys(prediction.remarks))
    for remark in remarks_shown:
        console.print(Text(remark))
    if len(predictions) > _MOST_DETAILED:
        console.print(Text("Memory by kind and module is shown of at most two; ask for one case on one GPU."))


def _print_details(console: Console, prediction: PhantomPrediction, microbatch: int | None) -> None:
    has_colors = console.color_system is not None and not console.no_color
    sizes = prediction.shown_sizes() if microbatch is None else [microbatch]
    shown = microbatch or prediction.largest or sizes[0]
    console.print(memory_table(prediction, sizes, has_colors=has_colors, width=console.width))
    held = prediction.breakdown(shown)
    if any(held.values()):
        console.print(legend(held, f"At {shown:,}", has_colors=has_colors))
        heading = f"holds at the peak of {shown:,}"
        console.print(modules_table(prediction.largest_modules(shown), heading, total_bytes=sum(held.values())))


def say_failures(failures: Sequence[BaseException]) -> None:
    """Print what kept cases from being predicted on standard error."""
    for failure in failures:
        say(f"Error: {str(failure) or 'interrupted'}")


def print_documents(documents: Sequence[Mapping[str, Any]], failures: Sequence[BaseException]) -> None:
    """Print one JSON document of all, with what kept other cases from being predicted."""
    if len(documents) == 1 and not failures:
        print_json(documents[0])
        return
    errors = {"error": describe(failures[-1])} if failures else {}  # the one that is raised
    print_json({"schema": documents[0]["schema"], "predictions": documents, **errors})
    for failure in failures:
        if isinstance(failure, BrimError):
            failure.is_printed = True


def _print_prediction(console: Console, prediction: Predicted, microbatch: int | None, *, read: Container[str]) -> None:
    sizes = prediction.shown_sizes() if microbatch is None else [microbatch]
    shown = microbatch or max(1, prediction.largest)
    has_colors = console.color_system is not None and not console.no_color
    console.print(memory_table(prediction, sizes, has_colors=has_colors, width=console.width))
    for remark in remarks(prediction, is_searched=microbatch is None, read=read):
        console.print(Text(remark))
    held = prediction.breakdown(shown)
    console.print(legend(held, f"At {shown:,}", has_colors=has_colors))
    heading = f"holds at the peak of {shown:,}"
    console.print(modules_table(prediction.largest_modules(shown), heading, total_bytes=sum(held.values())))
    advice = prediction.remedy(shown)
    if advice is not None:
        lacks = f"lacks {format_bytes(prediction.missing_bytes(shown))}"
        smaller = f" The largest that fits is {prediction.largest:,}." if prediction.largest else ""
        console.print(Text(f"Microbatch {shown:,} {lacks} on {prediction.gpu.name}: {advice}.{smaller}"))


def print_gpus(gpus: Sequence[Gpu]) -> None:
    """Print the catalog."""
    results_console().print(gpus_table(gpus, width=results_console().width))
