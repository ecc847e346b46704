"""`brim sweep`: paired and product grids, resumable, here or on Ray; `brim sweep results`: what came out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from brim.cli.find import NOTHING_FITS
from brim.cli.groups import DefaultsToFirst, StandsForGroup
from brim.errors import BrimError, DeviceError, InputError, SweepStoppedError

if TYPE_CHECKING:
    from brim.sweeping.driver import Sink
    from brim.sweeping.results import SweepResults

FAILED = 1
# Ends of a trial that answer the question which pairs fit, as `done` does.
_ANSWERS = {"done", "oom", "predicted_oom"}
# A server that does not answer is given up after seconds; MLflow's own settings try for minutes.
_MLFLOW_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
_HELP = "Run paired and product grids, resumable, here or on Ray."
app = typer.Typer(cls=DefaultsToFirst, no_args_is_help=True, help=_HELP)


@app.command("run", cls=StandsForGroup)
def command(
    file: Annotated[Path, typer.Argument(help="The sweep file, in YAML.", metavar="FILE")],
    out: Annotated[
        Path | None, typer.Option(help="Where results go. Default: NAME.sweep beside NAME.yaml.", metavar="DIR")
    ] = None,
    run: Annotated[
        str | None,
        typer.Option("--command", help="What to run, with {config} in it, instead of the file's.", metavar="COMMAND"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the count, the trials and their memory; run nothing.")
    ] = False,
    max_experiments: Annotated[int | None, typer.Option(help="Run only the first N trials.", metavar="N")] = None,
    retry: Annotated[
        str | None, typer.Option(help="Run trials again that ended so, e.g. oom,error.", metavar="KINDS")
    ] = None,
    engine: Annotated[str, typer.Option(help="local or ray.")] = "local",
    jobs: Annotated[
        int | None, typer.Option(help="Trials at once. Default: by cores, memory and GPUs.", metavar="N")
    ] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="ray: a running cluster. Default: a local one.", metavar="ADDRESS")
    ] = None,
    cpus: Annotated[float | None, typer.Option(help="CPUs of a trial.")] = None,
    gpus: Annotated[float | None, typer.Option(help="GPUs of a trial.")] = None,
    memory: Annotated[str | None, typer.Option(help="Host memory of a trial, e.g. 8GiB.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse what would have to be guessed.")] = False,
    mlflow: Annotated[
        str | None, typer.Option(help="Also send results to this MLflow tracking URI.", metavar="URI")
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(help="Also write results for TensorBoard here.", metavar="DIR")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show brim's own traceback on errors.")] = False,
) -> int:
    """Run every trial of a sweep once, or go on where it stopped.

    `brim sweep results DIR` shows what came out.
    """
    from brim.cli.output import warn
    from brim.cli.signals import end_like_ctrl_c
    from brim.cli.sweep_output import print_plan, sweep_observer
    from brim.sweeping.plan_file import PLAN_FILE
    from brim.sweeping.results import SweepResults
    from brim.sweeping.sweep import sweep, sweep_directory

    settings: dict[str, Any] = {
        "out": out,
        "command": run,
        "max_experiments": max_experiments,
        "strict": strict,
        "retry": [kind.strip() for kind in retry.split(",")] if retry else (),
        "cpus": cpus,
        "gpus": gpus,
        "memory": memory,
    }
    if dry_run:
        with sweep_observer() as told:
            results = sweep(file, dry_run=True, observer=told, **settings)
            print_plan(results, as_json=json)
        return 0
    settings |= {"engine": engine, "jobs": jobs, "ray_address": ray_address}
    settings["sinks"] = _sinks(file, mlflow, tensorboard)
    try:
        with end_like_ctrl_c(), sweep_observer() as told:
            results = sweep(file, observer=told, **settings)
    except (DeviceError, SweepStoppedError, KeyboardInterrupt) as error:
        directory = sweep_directory(file, out)
        if (directory / PLAN_FILE).exists():
            _print(SweepResults.read(directory), as_json=json)
        if isinstance(error, KeyboardInterrupt):
            warn("the same command goes on from here.")
        raise
    return _print(results, as_json=json)


@app.command("results")
def results_command(
    directory: Annotated[Path, typer.Argument(help="A sweep's directory, or its file.", metavar="DIR")],
    sort: Annotated[
        str | None,
        typer.Option(help="`metric` for the sweep's own, a metric's name (best first), or a key.", metavar="KEY"),
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="Turn the order round.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="CSV on standard output.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show brim's own traceback on errors.")] = False,
) -> int:
    """Show what came out of a sweep, also while it runs."""
    from brim.cli.output import print_json
    from brim.cli.sweep_output import print_csv, print_results
    from brim.sweeping.results import SweepResults, sort_results

    if csv and json:
        raise InputError("Choose one of --csv and --json.")
    results = SweepResults.read(directory.with_suffix(".sweep") if directory.suffix in (".yaml", ".yml") else directory)
    order = sort_results(results, sort, reverse=reverse) if sort else None
    if json:
        print_json({**results.to_dict(), "trials": [trial.to_dict() for trial in order or results.trials]})
    elif csv:
        print_csv(order or results.trials)
    else:
        print_results(results, order)
    return 0


def _print(results: SweepResults, *, as_json: bool) -> int:
    """Print what came out and return the exit code."""
    from brim.cli.output import print_json
    from brim.cli.sweep_output import print_results

    if as_json:
        print_json(results.to_dict())
        statuses = {trial.status for trial in results.trials}
    else:
        statuses = set(print_results(results))
    if statuses <= {"oom", "predicted_oom"}:
        return NOTHING_FITS
    return 0 if statuses <= _ANSWERS else FAILED


def _sinks(file: Path, mlflow: str | None, tensorboard: Path | None) -> list[Sink]:
    """Return where else results go; a tool that cannot be reached is told of, and the sweep runs without it."""
    from brim.cli.output import warn

    sinks: list[Sink] = []
    if mlflow is not None:
        for name, value in _MLFLOW_PATIENCE.items():
            os.environ.setdefault(name, value)
        from brim.integrations.mlflow import MlflowSink

        try:
            sinks.append(MlflowSink(mlflow, experiment=file.stem))
        except BrimError:
            raise
        except Exception as error:  # noqa: BLE001  MLflow may raise anything
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            warn(f"results do not go to MLflow at {mlflow}: {reason}")
    if tensorboard is not None:
        from brim.integrations.tensorboard import TensorBoardSink

        sinks.append(TensorBoardSink(tensorboard))
    return sinks
