"""`brim gpus`: the catalog."""

from __future__ import annotations

from typing import Annotated

import typer

SCHEMA = "brim.gpus/1"


def command(
    json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show brim's own traceback on errors.")] = False,
) -> int:
    """List the GPUs that `brim predict --gpu` knows.

    Names are also taken as torch says them. Rates are dense; float16 is that of tensor cores that add up in float32.
    """
    from dataclasses import asdict

    from brim.cli.output import print_json
    from brim.cli.prediction_output import print_gpus
    from brim.devices.catalog import gpus

    if json:
        print_json({"schema": SCHEMA, "gpus": [asdict(gpu) for gpu in gpus().values()]})
    else:
        print_gpus(list(gpus().values()))
    return 0
