"""Compare ways of batching by length: padding, batches, planning time; and check brim's budgets against predictions.

All batchers get the same lengths and the same number of tokens in a batch. Batchers of a fixed size, which know no
budget, get the largest that keeps the longest samples within it. Seconds are those of the process, for all batches of
an epoch.

Then brim's budgets are checked: against what is predicted for many lengths on a GPU, and by training an epoch under a
real limit on the CPU (see `length_memory.py`).

    python benchmarks/batching.py [--num-samples N] [--out FILE]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import random
import tracemalloc
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import brim
from batchers import Outcome, batchers
from length_memory import check_budgets, check_epochs
from report import Target, make_console, print_targets

HERE = Path(__file__).resolve().parent
DEFAULT_OUT = HERE / "results" / "batching.json"
LONGEST = 2048
MAX_TOKENS = 8 * LONGEST
_PACKAGES = ("brim", "torch", "transformers", "lhotse")


def make_lengths(num_samples: int) -> dict[str, list[int]]:
    """Return lengths as texts have them, most of them short, some of these alone, and lengths spread evenly."""
    draw = random.Random(0)
    texts = [min(LONGEST, max(1, round(draw.lognormvariate(5.5, 0.9)))) for _ in range(num_samples)]
    uniform = [draw.randint(1, LONGEST) for _ in range(num_samples)]
    return {"texts": texts, "few texts": texts[: max(1, num_samples // 100)], "uniform": uniform}


def scan_mixing(lengths: list[int]) -> dict[int, dict[str, Any]]:
    """Return what shuffling more batches' worth of samples together costs."""
    samplers = {
        number: brim.TokenBudgetSampler(lengths, max_tokens=MAX_TOKENS, batches_per_bucket=number)
        for number in (1, 2, 4, 8, 32)
    }
    return {
        number: {"num_batches": len(sampler), "padding_efficiency": round(sampler.padding_efficiency, 4)}
        for number, sampler in samplers.items()
    }


def traced_bytes_per_sample(lengths: list[int]) -> float:
    """Return the peak of what Python holds while brim plans an epoch, for each sample."""
    tracemalloc.start()
    next(iter(brim.TokenBudgetSampler(lengths, max_tokens=MAX_TOKENS)))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return round(peak_bytes / len(lengths), 1)


def check_targets(
    outcomes: dict[str, dict[str, Outcome]], held: dict[int, float], budgets: dict[str, Any], epochs: dict[str, Any]
) -> list[Target]:
    """Return what brim is held to."""
    targets = []
    for name, of_lengths in outcomes.items():
        peers = [outcome for batcher, outcome in of_lengths.items() if not batcher.startswith("brim")]
        for batcher in ("brim", "brim, packed"):
            ours = of_lengths[batcher]
            what = f"{name}, {batcher}"
            seconds = f"{ours.cpu_seconds:.2f} s"
            targets.append(Target(what=what, wanted="within 3 s", measured=seconds, met=ours.cpu_seconds <= 3))
            right = ours.every_index_once and ours.num_above == 0
            targets.append(Target(what=what, wanted="every index once, none above", measured=str(right), met=right))
        ours, best = of_lengths["brim"], max(peer.padding_efficiency for peer in peers)
        measured = f"{ours.padding_efficiency:.2%} against {best:.2%}"
        met = ours.padding_efficiency >= best
        targets.append(Target(what=f"{name}, brim", wanted="no more padding than any peer", measured=measured, met=met))
    spread = max(held.values()) / min(held.values())
    measured = f"{max(held.values()):.0f} bytes a sample, ± {spread - 1:.1%}"
    targets.append(Target(what="memory of planning", wanted="linear", measured=measured, met=spread < 1.1))
    most = max(
        budget["most_per_predicted"]
        for workload in budgets["workloads"].values()
        for budget in workload["budgets"].values()
    )
    measured = f"{most:.1%} of what fits"
    targets.append(Target(what="budgets", wanted="never above what fits", measured=measured, met=most <= 1))
    runs = [run for run in epochs["runs"] if run["margin"] > 0]
    num_ended = sum(run["num_fitted"] == run["num_steps"] for run in runs)
    measured = f"{num_ended} of {len(runs)}"
    targets.append(Target(what="epochs with a margin", wanted="all fit", measured=measured, met=num_ended == len(runs)))
    return targets


def print_outcomes(name: str, num_samples: int, outcomes: dict[str, Outcome], console: Console) -> None:
    """Print a row for each batcher."""
    table = Table(
        title=f"{name}: {num_samples:,} samples, at most {MAX_TOKENS:,} tokens in a batch", title_justify="left"
    )
    table.add_column("batcher")
    for heading in ("batches", "no padding", "above", "every index once", "CPU seconds"):
        table.add_column(heading, justify="right")
    for batcher, outcome in outcomes.items():
        cells = (f"{outcome.num_batches:,}", f"{outcome.padding_efficiency:.2%}", f"{outcome.num_above:,}")
        table.add_row(batcher, *cells, str(outcome.every_index_once), f"{outcome.cpu_seconds:.2f}")
    console.print(table)


def main() -> None:
    """Compare, print the tables and the targets, and write the raw numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-samples", type=int, default=1_000_000, metavar="N", help="how many lengths")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="default: results/batching.json")
    options = parser.parse_args()
    console = make_console()
    datasets = make_lengths(options.num_samples)
    outcomes = {}
    for name, lengths in datasets.items():
        outcomes[name] = {batcher: run() for batcher, run in batchers(lengths, MAX_TOKENS).items()}
        print_outcomes(name, len(lengths), outcomes[name], console)
    texts = datasets["texts"]
    held = {size: traced_bytes_per_sample(texts[:size]) for size in (len(texts) // 4, len(texts) // 2, len(texts))}
    budgets = check_budgets(texts)
    epochs = check_epochs()
    console.print_json(data={"budgets": budgets, "epochs": epochs})
    targets = check_targets(outcomes, held, budgets, epochs)
    print_targets(targets, console)
    document = {
        "environment": _environment(),
        "num_samples": options.num_samples,
        "max_tokens": MAX_TOKENS,
        "lengths": {name: {batcher: o.to_dict() for batcher, o in of.items()} for name, of in outcomes.items()},
        "mixing": {"num_samples": len(datasets["few texts"]), "batches_per_bucket": scan_mixing(datasets["few texts"])},
        "planning_bytes_per_sample": held,
        "budgets": budgets,
        "epochs": epochs,
        "targets": [target.to_dict() for target in targets],
    }
    options.out.write_text(json.dumps(document, indent=2) + "\n")
    console.print(f"Written: {options.out}")


def _environment() -> dict[str, Any]:
    versions = {package: importlib.metadata.version(package) for package in _PACKAGES}
    return {"python": platform.python_version(), "cpu_count": os.cpu_count(), **versions}


if __name__ == "__main__":
    main()
