"""Hold phantoms, and traces beside them, against memory that others measured on real GPUs.

    python benchmarks/published.py xmem                     # peaks of training runs on an RTX 3060 and 4060
    python benchmarks/published.py timm --sample 120         # the largest batch of timm's models on an RTX 3090
    python benchmarks/published.py xmem --rows FILE         # other rows of the same form
    python benchmarks/published.py xmem --no-trace          # phantoms alone

Every set runs with the torch and libraries of its time, as far as those install (`make .venv/.installed-published`).
lit-gpt is on GitHub alone: for the set `litgpt`, check out commit 069f6584 (data/README.md) of Lightning-AI/litgpt as
`.venv/published/lit-gpt`. `make benchmark-published` runs the other sets.
Each row is run once, and kept in `results/published-SET.jsonl` where no FILE is named; delete that to run them again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from kept_rows import KeptRows, spread
from published_figures import headline, summarize
from published_sets import SETS

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"

Row = dict[str, Any]


def main() -> None:
    """Run the rows that were not done yet and print what they add up to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("set", choices=sorted(SETS))
    parser.add_argument("--rows", type=Path, help="a file of rows in the form of the set's own")
    parser.add_argument("--sample", type=int, help="how many rows to run, spread over the set; default: all")
    parser.add_argument("--sites", type=Path, default=Path(sys.prefix), help="where the libraries of the time lie")
    parser.add_argument("--no-trace", action="store_true", help="run phantoms alone")
    options = parser.parse_args()
    chosen = SETS[options.set]
    sites = [options.sites / each for each in chosen.sites]
    if absent := [str(each) for each in sites if not each.is_dir()]:
        sys.exit(f"Not installed: {', '.join(absent)}. `make .venv/.installed-published` does that, or name --sites.")
    rows = spread(list(chosen.rows(options.rows)), options.sample)
    kept = KeptRows(RESULTS / f"published-{options.set}.jsonl") if options.rows is None else None
    results = {} if kept is None else {_key(result["row"]): result for result in kept.results}
    # Some rows are in the data more than once.
    missing = list({_key(row): row for row in rows if _key(row) not in results}.values())
    for result in _run(options.set, missing, sites, with_trace=chosen.has_trace and not options.no_trace):
        results[_key(result["row"])] = result
        if kept is not None:
            kept.add(result)
    done = [results[_key(row)] for row in rows]
    summary = summarize(chosen, done)
    print(json.dumps(summary, indent=2))
    if kept is not None:
        _keep(options.set, summary)
    print(headline(summary))


def _run(name: str, rows: Sequence[Row], sites: Sequence[Path], *, with_trace: bool) -> Iterator[Row]:
    """Yield what the phantom says of every row, and the trace beside it."""
    from brim.phantom import Phantoms, read_torch

    chosen = SETS[name]
    torch = read_torch(sites[0] / "torch")
    for card, group in groupby(sorted(rows, key=lambda row: repr(chosen.gpu(row))), chosen.gpu):
        of_card = list(group)
        # The trace runs on the torch of brim's own environment, beside the same libraries.
        traces = _results(f"{name}-trace", of_card, os.environ, sites[1:]) if with_trace else iter(())
        with Phantoms([card], torch=torch, context=chosen.context(card)) as phantoms:
            for result in _results(name, of_card, phantoms.environment(), sites):
                yield {**result, "torch": torch.version, "trace": _figures(next(traces, None))}


def _figures(result: Row | None) -> Row | None:
    return None if result is None else {name: value for name, value in result.items() if name != "row"}


def _results(name: str, rows: Sequence[Row], environment: Mapping[str, str], sites: Sequence[Path]) -> Iterator[Row]:
    """Yield a result for each row from a process that runs them in turn."""
    path = filter(None, [*map(str, sites), environment.get("PYTHONPATH", "")])
    here = {**environment, "PYTHONPATH": os.pathsep.join(path)}
    words = [sys.executable, str(HERE / "published_rows.py"), name]
    with subprocess.Popen(words, env=here, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("".join(json.dumps(row) + "\n" for row in rows))
        process.stdin.close()
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode:
        sys.exit(f"{words[1]} {name} ended with exit code {process.returncode}")


def _key(row: Row) -> str:
    return json.dumps(row, sort_keys=True)


def _keep(name: str, summary: Row) -> None:
    document = RESULTS / "published.json"
    summaries = json.loads(document.read_text()) if document.exists() else {}
    document.write_text(json.dumps(summaries | {name: summary}, indent=2) + "\n")


if __name__ == "__main__":
    main()
