"""`brim predict`: memory and the largest microbatch on a GPU that need not be there."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from brim.cli.find import NOTHING_FITS
from brim.errors import BrimError, InputError, TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from brim.cases import Case
    from brim.devices.catalog import Gpu
    from brim.tracing.prediction import Prediction


def command(
    workload: Annotated[
        list[str],
        typer.Argument(
            help="file.py:Name or package.module:Name, a subclass of brim.Workload; or after -- a command with "
            "{batch} where the microbatch belongs.",
            metavar="WORKLOAD | -- COMMAND",
        ),
    ],
    gpu: Annotated[
        list[str] | None,
        typer.Option(
            help="A name of `brim gpus`, several of it as NAME:2; repeated flags make columns.", metavar="NAME"
        ),
    ] = None,
    memory: Annotated[
        list[str] | None,
        typer.Option(
            help="Any other card: the memory that torch reports, e.g. 23.7GiB; a column beside those of --gpu.",
            metavar="SIZE",
        ),
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(help="KEY=2,4,6 or KEY=2..13; repeated flags multiply.", metavar="KEY=VALUES"),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="phantom: torch's own CUDA build on a GPU that is not there. trace: the step on fake tensors. "
            "auto: phantom where torch has CUDA."
        ),
    ] = "auto",
    microbatch: Annotated[int | None, typer.Option(help="Show this size alone.")] = None,
    fill: Annotated[float, typer.Option(help="The share of the memory that the job may use.")] = 1.0,
    cap: Annotated[int | None, typer.Option(help="The largest microbatch to look for.")] = None,
    steps: Annotated[int, typer.Option(help="Phantom: whole steps in each run.")] = 3,
    timeout: Annotated[
        str | None, typer.Option(help="Phantom: end a run that makes no progress for this long. Default: 10min.")
    ] = None,
    cuda: Annotated[
        str | None, typer.Option(help="Trace: the CUDA version of the job's torch, e.g. 12.8. Default: this torch's.")
    ] = None,
    expandable_segments: Annotated[
        bool | None, typer.Option(help="Whether the job's allocator grows in place. Default: as the environment says.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show brim's own traceback on errors.")] = False,
) -> int:
    """Predict memory and the largest microbatch, without a GPU.

    A script or a workload runs on a phantom, which counts memory and computes nothing. Without torch's CUDA build a
    workload runs on fake tensors, and CUDA's allocator is replayed over what it asks for.
    """
    from brim.cases import parse_cases
    from brim.cli.phantom_predict import Engine, choose_engine, find_machines, predict_and_print
    from brim.devices.device import check_fill

    check_fill(fill)
    machines = find_machines(gpu or [], memory or [])
    cases = parse_cases(case or [])
    if microbatch is not None and microbatch < 1:
        raise InputError(f"--microbatch is {microbatch}. Use a whole number of at least 1.")
    if microbatch is not None and cap is not None:
        raise InputError(
            "--cap ends the search for the largest, and --microbatch shows one size alone. Use one of them."
        )
    if choose_engine(engine, workload, machines, cuda=cuda) is Engine.PHANTOM:
        return predict_and_print(
            workload,
            machines,
            cases=cases,
            microbatch=microbatch,
            fill=fill,
            cap=cap,
            steps=steps,
            timeout=timeout,
            expandable_segments=expandable_segments,
            as_json=json,
        )
    return _trace(
        workload[0],
        [machine.gpu for machine in machines],
        cases=cases,
        microbatch=microbatch,
        fill=fill,
        cap=cap,
        cuda=cuda,
        expandable_segments=expandable_segments,
        as_json=json,
    )


def _trace(
    workload: str,
    found: list[Gpu],
    *,
    cases: Sequence[Case],
    microbatch: int | None,
    fill: float,
    cap: int | None,
    cuda: str | None,
    expandable_segments: bool | None,
    as_json: bool,
) -> int:
    from brim.cli.output import nothing_on_stdout, print_json_error, telling
    from brim.cli.prediction_output import print_documents, print_predictions, say_failures
    from brim.cli.signals import end_like_ctrl_c
    from brim.tracing.prediction import predict_all
    from brim.tracing.runtime import runtime_here
    from brim.workload import load_here

    runtime = runtime_here(cuda=cuda, expandable_segments=expandable_segments)
    with nothing_on_stdout(), end_like_ctrl_c(), telling() as tell:
        loaded = load_here(workload)
        predict_case = partial(predict_all, loaded, gpus=found, runtime=runtime, fill=fill, cap=cap, tell=tell)
        predictions, failures = _predictions(
            lambda case: _answered(predict_case(cases=[case]), microbatch, tell), cases
        )
        documents = [each.to_dict(workload, microbatch=microbatch) for each in predictions] if as_json else []
    if documents:
        print_documents(documents, failures)
    elif predictions:
        print_predictions(workload, predictions, microbatch=microbatch)
    elif as_json and isinstance(failures[-1], KeyboardInterrupt):
        print_json_error(failures[-1])  # typer makes a mere exit code of it
    if failures:
        say_failures(failures[:-1])
        raise failures[-1]  # where it was interrupted, that
    return 0 if all(_fits_anywhere(predictions, each, microbatch) for each in cases) else NOTHING_FITS


def _predictions(
    predict: Callable[[Case], list[Prediction]], cases: Sequence[Case]
) -> tuple[list[Prediction], list[BrimError | KeyboardInterrupt]]:
    """Return what is predicted of cases, and what kept others from it."""
    predictions: list[Prediction] = []
    failures: list[BrimError | KeyboardInterrupt] = []
    for case in cases:
        try:
            predictions += predict(case)
        except TraceError as error:  # of this case; others may have an answer
            failures.append(error)
        except KeyboardInterrupt as error:
            failures.append(error)
            break
    return predictions, failures


def _answered(predictions: list[Prediction], microbatch: int | None, tell: Callable[[str], None]) -> list[Prediction]:
    """Ask every prediction for what will be printed, which is found once, and return them."""
    for prediction in predictions:
        tell(f"{'searching' if microbatch is None else 'replaying'} {prediction.case} on {prediction.gpu.name}")
        if microbatch is None:
            _ = prediction.interval, prediction.shown_sizes()
        else:
            prediction.check(microbatch)
            _ = prediction.peak(microbatch)
    return predictions


def _fits_anywhere(predictions: Sequence[Prediction], case: Case, microbatch: int | None) -> bool:
    return any(
        prediction.largest > 0 if microbatch is None else prediction.fits(microbatch)
        for prediction in predictions
        if prediction.case == case
    )
