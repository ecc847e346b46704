"""`brim history`: what was found before."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from brim.errors import DeviceError, InputError

SCHEMA = "brim.history/1"


def command(
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many to list.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show brim's own traceback on errors.")] = False,
) -> int:
    """List the newest findings of the history."""
    from brim.cli.output import print_history, print_json
    from brim.history import History, default_path

    if limit < 1:
        raise InputError(f"--limit is {limit}. Use a whole number of at least 1.")
    history = History(warn=lambda message: None)
    rows = history.newest(limit)
    if history.problem is not None:
        raise DeviceError(f"{history.problem}. Move it away, or name another folder in BRIM_CACHE_DIR.")
    if not json:
        print_history(rows, path=default_path(), now=time.time())
        return 0
    entries = [
        {
            "created": row.created,
            "workload": row.workload,
            "device": row.device,
            "limit_bytes": row.limit_bytes,
            "goal": row.goal,
            "finding": row.finding.to_dict(),
        }
        for row in rows
    ]
    print_json({"schema": SCHEMA, "path": str(default_path()), "entries": entries})
    return 0
