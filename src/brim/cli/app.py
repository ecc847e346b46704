"""The program `brim`: its commands and its exit codes.

0 answered · 1 failed (an error of the workload or the machine) · 2 bad input · 3 nothing fits · 130 interrupted
`brim phantom` passes on the exit code of its command.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated, Any

import typer

import brim
from brim.cli import demo, find, gpus, history, phantom, plan, predict, report, sweep, watch
from brim.errors import BrimError

INTERRUPTED = 130
# Typer exports only this child of the error that every mistake on the command line is.
_UsageError: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="brim",
    help="Which batch size? The largest that fits, per device and input shape, measured.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("find")(find.command)
app.command("predict")(predict.command)
# What follows the first word that is no option belongs to the job.
_OF_A_JOB = {"allow_interspersed_args": False}
app.command("phantom", context_settings=_OF_A_JOB)(phantom.command)
app.add_typer(plan.app, name="plan")
app.add_typer(sweep.app, name="sweep")
app.command("watch", context_settings=_OF_A_JOB)(watch.command)
app.command("report")(report.command)
app.command("gpus")(gpus.command)
app.command("demo")(demo.command)
app.command("history")(history.command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"brim {brim.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def _failed(error: BaseException, code: int, *, as_json: bool) -> int:
    if as_json:
        from brim.cli.output import print_json_error

        print_json_error(error)
    return code


def main() -> None:
    """Run the command line and exit with the documented code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error: an answer is worth more than its bars
    try:
        code = _run()
    except BrokenPipeError:
        # The reader of our output went away, as in `brim … | head`.
        _drop_output()
        code = 0
    except OSError as error:
        if isinstance(error, BrimError) or not _output_fails():
            raise
        _drop_output()
        sys.stderr.write(f"Error: standard output: {error.strerror}.\n")
        code = 1
    if code == INTERRUPTED:
        sys.stderr.write("Interrupted.\n")
    sys.exit(code)


def _output_fails() -> bool:
    """Return whether standard output takes nothing more: an error of writing does not say of which file it is."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except OSError:
        return True
    return False


def _drop_output() -> None:
    """Let what is still to be written to standard output go nowhere, so that its end cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run() -> int:
    own = sys.argv[: sys.argv.index("--")] if "--" in sys.argv else sys.argv
    as_json = "--json" in own
    try:
        code: int = app(standalone_mode=False) or 0
    except BrimError as error:
        if "--debug" in own:
            raise
        from brim.cli.output import print_error

        print_error(error)
        code = _failed(error, error.exit_code, as_json=as_json)
    except _UsageError as error:
        error.show()
        if "--" not in sys.argv and any("{batch}" in word for word in sys.argv):
            sys.stderr.write("A command goes after --, as in: brim find --cap 64 -- python train.py --bs {batch}\n")
        code = _failed(error, error.exit_code, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort) as error:
        code = _failed(error, INTERRUPTED, as_json=as_json)
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # which Rich and Typer make a failure of
            raise error.__context__ from None
        raise
    return code
