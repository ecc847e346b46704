"""Compare predictions with memory that was measured: on this CPU, and by others on real GPUs.

    python benchmarks/prediction.py cpu             # 23 models against the CPU allocator's real peak
    python benchmarks/prediction.py timm            # the largest batch of timm's models on an RTX 3090
    python benchmarks/prediction.py time --processes 1  # what their traces cost on one core
    python benchmarks/prediction.py xmem            # peaks of training runs, beside four other estimators
    python benchmarks/prediction.py lengths         # what a first batch of shorter texts does to four of them
    python benchmarks/prediction.py bert            # seven ways to train bert-large on a V100
    python benchmarks/prediction.py large           # what it takes to trace 70 billion parameters
    python benchmarks/prediction.py tokens          # what it saves and costs not to trace every token of a generation
    python benchmarks/prediction.py timm --limit 20 # a sample, spread over the file

`cpu`, `timm`, `time`, `xmem` and `lengths` need timm and torchvision, the last two also the transformers of their time:
`make benchmark-prediction` installs them apart. `bert` and `large` do without. `data/` says where the figures come
from. Rows run in two processes and in an order of chance, so that a run that is stopped is a fair sample. One that was
done is not done again, only one that had a problem: results are kept in `results/prediction-SET.jsonl` until that file
is deleted. What all of a set add up to is in `results/prediction.json`; a sample's figures are printed alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from kept_rows import KeptRows, RowsStoppedError, run_rows, spread
from prediction_figures import summarize
from prediction_sets import SETS

RESULTS = Path(__file__).resolve().parent / "results"
NUM_PROCESSES = 2
# What shells expect of a program that Ctrl-C has ended.
INTERRUPTED = 130


def run_row(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its result, or with why there is none."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        result = SETS[name][1](row)
    except Exception as error:  # a row that cannot be predicted is counted, not hidden
        if missing := _missing_package(error):
            raise ImportError(str(missing)) from error  # that says nothing about the row
        result = {"problem": f"{type(error).__name__}: {error}"[:300]}
    return {"row": row, **result}


def _missing_package(error: BaseException | None) -> ImportError | None:
    """Return why something could not be imported, where that is what an error comes from."""
    while error is not None and not isinstance(error, ImportError):
        error = error.__cause__
    return error


def main() -> None:
    """Run the rows that were not done yet, then print what all add up to, and keep it once the set is whole."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("set", choices=sorted(SETS))
    parser.add_argument("--limit", type=_positive, help="rows to run, spread over the set; default: all")
    parser.add_argument("--processes", type=_positive, default=NUM_PROCESSES, help="rows at once; default: %(default)s")
    options = parser.parse_args()
    try:
        rows = list(SETS[options.set][0]())
        path = RESULTS / f"prediction-{options.set}.jsonl"
        kept = KeptRows(path)
        chosen = spread(rows, options.limit)
        if num_kept := sum(row in kept for row in chosen):
            print(f"{num_kept} of {len(chosen)} rows are kept from earlier runs: delete {path.name} to run them again")
        run_rows(partial(run_row, options.set), chosen, kept, processes=options.processes, description=options.set)
    except ImportError as error:
        sys.exit(f"A package is missing: {error}. `make benchmark-prediction` installs all and goes on with every set.")
    except RowsStoppedError as stopped:
        print(f"stopped: {stopped.num_done} of {stopped.num_rows} rows done; run it again to go on")
        sys.exit(INTERRUPTED)
    summary = summarize(options.set, kept.results)
    print(json.dumps(summary, indent=2))
    num_done = sum(row in kept for row in rows)
    if num_done < len(rows):
        print(f"This is a sample: {num_done} of {len(rows)} rows. results/prediction.json stays as it is.")
    else:
        _keep(options.set, summary)


def _keep(name: str, summary: dict[str, Any]) -> None:
    document = RESULTS / "prediction.json"
    summaries = json.loads(document.read_text()) if document.exists() else {}
    document.write_text(json.dumps(summaries | {name: summary}, indent=2) + "\n")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} rows are none: give 1 or more")
    return number


if __name__ == "__main__":
    main()
