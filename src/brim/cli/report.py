"""`brim report`: findings, predictions, plans and sweeps as one HTML page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from brim.errors import DeviceError, InputError

STANDARD_OUTPUT = "-"


def command(
    sources: Annotated[
        list[str], typer.Argument(help="What brim wrote with --json, a sweep's directory, or - .", metavar="FILE…")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page; - is standard output.", metavar="FILE")] = Path(
        "report.html"
    ),
    title: Annotated[str, typer.Option(help="The title of the page.")] = "brim report",
    json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show brim's own traceback on errors.")] = False,
) -> int:
    """Write one HTML page with charts, tables and what to paste.

    brim find train.py:Finetune --json > found.json && brim report found.json
    """
    from brim.cli.output import print_json, print_line, say
    from brim.reporting.page import read_documents, render_page

    is_piped = str(out) == STANDARD_OUTPUT
    if is_piped and json:
        raise InputError("--out - and --json both write to standard output. Name a file: --out report.html.")
    if out.is_dir() and not is_piped:
        raise InputError(f"{out} is a folder. Name a file in it: --out {out / 'report.html'}.")
    documents = read_documents(sources)
    page = render_page(documents, title=title)
    if is_piped:
        # The page says that it is UTF-8, whatever the locale does to standard output.
        sys.stdout.buffer.write(page.encode())
        sys.stdout.buffer.flush()
        say(f"{_kilobytes(len(page.encode()))} to standard output.")
        return 0
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise DeviceError(f"{out} cannot be written: {error.strerror}. Use another one: --out FILE.") from error
    size = out.stat().st_size
    if json:
        shown = [{"source": each.source, "schema": each.schema} for each in documents]
        print_json({"schema": "brim.report/1", "path": str(out), "bytes": size, "documents": shown})
    else:
        print_line(f"{out}: {_kilobytes(size)}, opens in any browser, needs no network.")
    return 0


def _kilobytes(num_bytes: int) -> str:
    return f"{num_bytes / 1000:,.0f} kB"
