"""`brim find`: the largest microbatch, per case."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from brim.errors import BrimError, InputError

if TYPE_CHECKING:
    from brim.searching import ScaleTable

NOTHING_FITS = 3


def command(
    workload: Annotated[
        list[str],
        typer.Argument(
            help="file.py:Name or package.module:Name, a subclass of brim.Workload; or after -- a command with "
            "{batch} where the microbatch belongs.",
            metavar="WORKLOAD | -- COMMAND",
        ),
    ],
    case: Annotated[
        list[str] | None,
        typer.Option(help="KEY=2,4,6 or KEY=2..13; repeated flags multiply.", metavar="KEY=VALUES"),
    ] = None,
    lengths: Annotated[
        Path | None,
        typer.Option(help="A dataset's lengths, one a line: find a batch for each bucket of them.", metavar="FILE"),
    ] = None,
    start_from: Annotated[
        list[str] | None, typer.Option(help="Skip the cases before this value.", metavar="KEY=VALUE")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda:N.")] = "auto",
    memory: Annotated[
        str | None, typer.Option(help="What the job may have, each rank of it, e.g. 8GiB. Default: what is free now.")
    ] = None,
    fill: Annotated[float, typer.Option(help="The share of the memory that the peak may use.")] = 0.9,
    cap: Annotated[int | None, typer.Option(help="The largest microbatch to try.")] = None,
    start: Annotated[int | None, typer.Option(help="The first microbatch to try.")] = None,
    multiple_of: Annotated[int, typer.Option(help="Try only multiples of this.")] = 1,
    strategy: Annotated[str, typer.Option(help="guided, estimate or doubling.")] = "guided",
    refine: Annotated[bool, typer.Option("--refine", help="doubling: bisect after the first OOM.")] = False,
    scale_table: Annotated[
        Path | None, typer.Option(help="estimate: a YAML file with key, scales and above.", metavar="FILE")
    ] = None,
    goal: Annotated[
        str, typer.Option(help="largest, or fastest: the smallest microbatch within 5% of the best rate.")
    ] = "largest",
    steps: Annotated[
        int | None,
        typer.Option(help="Whole steps in each probe, and rounds of --goal fastest. Default: 3, and 3 s of rounds."),
    ] = None,
    ranks: Annotated[int, typer.Option(help="Data-parallel processes, one device each; a workload's own wrap.")] = 1,
    nodes: Annotated[
        int | None,
        typer.Option(help="Machines that share the ranks, each running this command. Default: Slurm's or torchrun's."),
    ] = None,
    rdzv_endpoint: Annotated[
        str | None, typer.Option(help="Where these machines meet. Default: torchrun's own store.", metavar="HOST:PORT")
    ] = None,
    tries: Annotated[int | None, typer.Option(help="Sizes to try for a case, the confirmation aside.")] = None,
    time_limit: Annotated[str | None, typer.Option(help="Time for the search of a case, e.g. 90s.")] = None,
    timeout: Annotated[
        str | None, typer.Option(help="End a probe that makes no progress for this long. Default: 10min.")
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Neither use nor extend the history.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show brim's own traceback on errors.")] = False,
) -> int:
    """Find the largest microbatch that fits, for every case.

    Every size that is reported has been run and has fitted, at last once more in a fresh process.
    """
    # Imported here, in every command, so that `brim --help` answers at once.
    from brim.cases import parse_cases
    from brim.planning.buckets import read_lengths
    from brim.probing.scripts.command import BATCH

    if scale_table is not None and strategy != "estimate":
        raise InputError("--scale-table goes with --strategy estimate.")
    if start_from and len(start_from) > 1:
        raise InputError(f"--start-from is given {len(start_from)} times. Name one value to start from.")
    first = start_from[0] if start_from else None
    cases = None if lengths is not None and not case else parse_cases(case or [], start_from=first)
    is_command = len(workload) > 1 or BATCH in workload[0]
    return find_and_print(
        workload if is_command else workload[0],
        as_json=json,
        cases=cases,
        device=device,
        memory=memory,
        fill=fill,
        cap=cap,
        start=start,
        multiple_of=multiple_of,
        strategy=strategy,
        refine=refine,
        goal=goal,
        steps=steps,
        ranks=ranks,
        nodes=nodes,
        rdzv_endpoint=rdzv_endpoint,
        timeout=timeout,
        cache=not no_cache,
        tries=tries,
        time_limit=time_limit,
        lengths=None if lengths is None else read_lengths(lengths),
        scale_table=None if scale_table is None else _read_scale_table(scale_table),
    )


def find_and_print(workload: str | list[str], *, as_json: bool, **settings: Any) -> int:
    """Search, print what was found, also when the search was cut short, and return the exit code."""
    from brim.cli.output import observer, print_findings, print_json_error, print_text
    from brim.cli.signals import end_like_ctrl_c
    from brim.finding import find

    try:
        with end_like_ctrl_c(), observer() as told:
            findings = find(workload, observer=told, **settings)
    except (BrimError, KeyboardInterrupt) as error:
        found_before = getattr(error, "findings", None)
        if found_before:
            print_findings(found_before, as_json=as_json, error=error)
        elif as_json and isinstance(error, KeyboardInterrupt):
            print_json_error(error)  # typer makes a mere exit code of it
        raise
    print_findings(findings, as_json=as_json)
    if settings.get("lengths") is not None and not as_json:
        largest = {next(iter(finding.case.values())): finding.microbatch for finding in findings}
        print_text(f"brim.TokenBudgetSampler(lengths, largest={largest})")
    return NOTHING_FITS if any(finding.microbatch is None for finding in findings) else 0


def _read_scale_table(path: Path) -> ScaleTable:
    import yaml

    from brim.searching import ScaleTable

    try:
        return ScaleTable.from_mapping(yaml.safe_load(path.read_text()))
    except OSError as error:
        raise InputError(f"The scale table {path} cannot be read: {error.strerror}.") from error
    except yaml.YAMLError as error:
        raise InputError(f"The scale table {path} is not YAML: {error}") from error
