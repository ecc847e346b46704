"""`brim predict`: memory and the largest microbatch on a GPU that need not be there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from brim.cli.find import NOTHING_FITS
from brim.errors import InputError

if TYPE_CHECKING:
    from brim.devices.catalog import Gpu


def command(
    workload: Annotated[
        str,
        typer.Argument(help="file.py:Name or package.module:Name, a subclass of brim.Workload.", metavar="WORKLOAD"),
    ],
    gpu: Annotated[
        list[str] | None, typer.Option(help="A name of `brim gpus`; repeated flags make columns.", metavar="NAME")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Any other card: the memory that torch reports, e.g. 23.7GiB; a column beside those of --gpu."
        ),
    ] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(help="KEY=2,4,6 or KEY=2..13; repeated flags multiply.", metavar="KEY=VALUES"),
    ] = None,
    microbatch: Annotated[int | None, typer.Option(help="Show this size alone.")] = None,
    fill: Annotated[float, typer.Option(help="The share of the memory that the job may use.")] = 1.0,
    cap: Annotated[int | None, typer.Option(help="The largest microbatch to look for.")] = None,
    cuda: Annotated[
        str | None, typer.Option(help="The CUDA version of the job's torch, e.g. 12.8. Default: this torch's.")
    ] = None,
    expandable_segments: Annotated[
        bool | None, typer.Option(help="Whether the job's allocator grows in place. Default: as the environment says.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show brim's own traceback on errors.")] = False,
) -> int:
    """Predict memory and the largest microbatch, without a GPU.

    The step runs on fake tensors, and CUDA's allocator is replayed over what it asks for.
    """
    from brim.cases import parse_cases
    from brim.cli.output import print_json, telling
    from brim.cli.prediction_output import print_predictions

    found = _gpus(gpu or [], memory)
    cases = parse_cases(case or [])
    if microbatch is not None and microbatch < 1:
        raise InputError(f"--microbatch is {microbatch}. Use a whole number of at least 1.")
    if microbatch is not None and cap is not None:
        raise InputError(
            "--cap ends the search for the largest, and --microbatch shows one size alone. Use one of them."
        )
    from brim.tracing.prediction import predict_all
    from brim.tracing.runtime import runtime_here

    runtime = runtime_here(cuda=cuda, expandable_segments=expandable_segments)
    with telling() as tell:
        predictions = predict_all(workload, gpus=found, cases=cases, runtime=runtime, fill=fill, cap=cap, tell=tell)
        for prediction in predictions if microbatch is None else []:
            tell(f"searching {prediction.case} on {prediction.gpu.name}")
            _ = prediction.interval  # found once, and then known
    if json:
        documents = [prediction.to_dict(workload, microbatch=microbatch) for prediction in predictions]
        several = {"schema": documents[0]["schema"], "predictions": documents}
        print_json(documents[0] if len(documents) == 1 else several)
    else:
        print_predictions(workload, predictions, microbatch=microbatch)
    fits = [prediction.largest > 0 if microbatch is None else prediction.fits(microbatch) for prediction in predictions]
    return 0 if all(fits) else NOTHING_FITS


def _gpus(names: list[str], memory: str | None) -> list[Gpu]:
    from brim.devices.catalog import Gpu, find_gpu
    from brim.units import parse_bytes

    found = [find_gpu(name) for name in names]
    if memory is not None:
        found.append(Gpu(name=memory, memory_bytes=parse_bytes(memory)))
    if not found:
        raise InputError("Which GPU? Pass --gpu rtx-3090 (`brim gpus` lists all) or --memory 23.7GiB.")
    return found
