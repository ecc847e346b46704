"""`brim phantom`: one run of a command as it is on GPUs that are not there.

With --json one document goes to standard output, and what the command prints there to standard error:

    {"schema": "brim.phantom/1", "command": ["python", "train.py"], "torch": "2.13.0+cu130",
     "gpus": [{"name": "t4", "memory_bytes": 0, "peak_bytes": 0}],
     "ended_by": "itself", "exit_code": 0, "seconds": 9.5, "kind": "train", "steps": 3,
     "processes": [
       {"pid": 4711, "rank": null, "device": 0,
        "peak": {"allocated_bytes": 0, "reserved_bytes": 0, "device_bytes": 0}, "num_retries": 0, "pinned_bytes": 0,
        "breakdown": {"by_kind": {"parameters": 0}, "by_module": [{"name": "head", "bytes": 0}]},
        "refused": {"asked_bytes": 0, "line": "train.py:8 (loss.backward())", "breakdown": {}}}],
     "remarks": [], "snapshots": []}

A device has an entry for each process that used it; `peak_bytes` of a GPU is what all held at once. `ended_by` is
`itself`, `steps` or `interrupt`; `exit_code` is negative for a signal and null where brim ended the command; `kind` is
null where no step was seen; `rank` is null where there is one; `num_retries`, `breakdown` and `refused` are null where
the process told nothing of them.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brim.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from brim.finding.phantom import Machine
    from brim.probing.phantom_run import Progress
    from brim.probing.taken import Run

_EXAMPLE = "brim phantom --gpu a100-80gb -- python train.py --batch_size 16"
# What a shell adds to the number of the signal that ended a program.
_SIGNALLED = 128


def command(
    run: Annotated[
        list[str] | None, typer.Argument(help="After --: the command, as it is.", metavar="-- COMMAND")
    ] = None,
    gpu: Annotated[
        list[str] | None, typer.Option(help="A name of `brim gpus`, several of it as NAME:2.", metavar="NAME")
    ] = None,
    memory: Annotated[
        list[str] | None,
        typer.Option(help="Any other card: the memory that torch reports, e.g. 23.7GiB.", metavar="SIZE"),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="End the command after so many whole steps. Default: at its own end.")
    ] = None,
    snapshot: Annotated[
        Path | None,
        typer.Option(help="Write torch's own memory snapshot, for pytorch.org/memory_viz.", metavar="FILE"),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show brim's own traceback on errors.")] = False,
) -> int:
    """Run a command on GPUs that are not there: what it takes.

    Its output passes through; then standard error says for each process and device what it took, and what held the
    memory. The exit code is the command's own.

    brim phantom --gpu a100-80gb -- python train.py --batch_size 16
    """
    from brim.cli.app import INTERRUPTED
    from brim.probing.phantom_run import Once, run_once
    from brim.probing.taken import End

    machine = _machine(gpu or [], memory or [])
    words = run or []
    _check(words, steps, snapshot)
    sys.stdout.flush()
    once = Once(
        words=words,
        gpus=[machine.gpu] * machine.num_gpus,
        steps=steps,
        stdout=sys.stderr.fileno() if json else None,
        snapshot=snapshot,
    )
    with _status_line() as show:
        done = run_once(once, show=show)
    _print(done, as_json=json)
    if done.ended is End.INTERRUPT:
        return INTERRUPTED
    if done.ended is End.STEPS:
        return 0
    code = 1 if done.exit_code is None else done.exit_code
    return _SIGNALLED - code if code < 0 else code


def _machine(names: Sequence[str], memories: Sequence[str]) -> Machine:
    from brim.cli.phantom_predict import find_machines

    if len(names) + len(memories) > 1:
        raise InputError(
            "A command runs once, on one machine. Pass one --gpu or --memory, several of a card as --gpu NAME:2."
        )
    return find_machines(names, memories)[0]


def _check(words: Sequence[str], steps: int | None, snapshot: Path | None) -> None:
    """Refuse what cannot run."""
    from brim.probing.scripts.command import BATCH, check_program

    if not words:
        raise InputError(f"Nothing stands after --. Name the command: {_EXAMPLE}")
    if any(BATCH in word for word in words):
        raise InputError(
            f"A command runs once, as it is, and {BATCH} is no number. Write one in its place, or search for the "
            f"largest: brim predict --gpu NAME -- {' '.join(words)}"
        )
    check_program(words)
    if steps is not None and steps < 1:
        raise InputError(f"--steps is {steps}. Use a whole number of at least 1.")
    folder = Path() if snapshot is None else snapshot.parent
    if snapshot is not None and (snapshot.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK)):
        raise InputError(
            f"The snapshot cannot be written to {snapshot}. Name a file in a folder that is there and can be written."
        )


@contextmanager
def _status_line() -> Iterator[Callable[[Progress], None] | None]:
    """Yield what shows a run's progress at the bottom of a terminal; None elsewhere."""
    from rich.console import Console

    from brim.reporting.phantom_run import progress_line
    from brim.reporting.status_line import StatusLine

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal or console.is_dumb_terminal:
        yield None
        return
    with StatusLine(console) as line:

        def show(progress: Progress) -> None:
            if progress.peak_bytes and line.is_due():
                line.draw(progress_line(progress, width=line.width))

        yield show


def _print(run: Run, *, as_json: bool) -> None:
    from brim.cli.output import print_json, results_console
    from brim.reporting.phantom_run import run_report

    if as_json:
        print_json(run.to_dict())
        return
    console = results_console(stderr=True)
    has_colors = console.color_system is not None and not console.no_color
    if console.is_terminal:
        console.print()  # a progress bar may have left the cursor behind itself
    for each in run_report(run, has_colors=has_colors, width=console.width):
        console.print(each)
