"""Compare ways of batching by length: padding, batches, planning time; and check brim's budgets against predictions.

All batchers get the same lengths and the same number of tokens in a batch. Batchers of a fixed size, which know no
budget, get the largest that keeps the longest samples within it. Seconds are those of the process, for all batches of
an epoch.

The second part predicts the largest microbatch of two workloads on an RTX 3090 for every length of a list. brim's
budgets are told the powers of two among them, and then must not allow more than was predicted at any other length.

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
from brim.planning.length_budget import MARGIN, make_budget
from report import Target, make_console, print_targets

HERE = Path(__file__).resolve().parent
DEFAULT_OUT = HERE / "results" / "batching.json"
LONGEST = 2048
MAX_TOKENS = 8 * LONGEST
GPU = "rtx-3090"
# With attention that does not keep its scores, and with one that does.
WORKLOADS = {"fused": "../examples/finetune.py:Finetune", "unfused": "sequence.py:Unfused"}
MEASURED = (128, 256, 512, 1024, 2048)
BETWEEN = (129, 191, 192, 255, 300, 384, 500, 511, 640, 768, 1000, 1023, 1300, 1536, 1800, 2047)
_PACKAGES = ("brim", "torch", "transformers", "lhotse")


def make_lengths(num_samples: int) -> dict[str, list[int]]:
    """Return lengths as texts have them, most of them short, and lengths spread evenly."""
    texts, evenly = random.Random(0), random.Random(1)
    return {
        "texts": [min(LONGEST, max(1, round(texts.lognormvariate(5.5, 0.9)))) for _ in range(num_samples)],
        "uniform": [evenly.randint(1, LONGEST) for _ in range(num_samples)],
    }


def traced_bytes_per_sample(lengths: list[int]) -> float:
    """Return the peak of what Python holds while brim plans an epoch, for each sample."""
    tracemalloc.start()
    next(iter(brim.TokenBudgetSampler(lengths, max_tokens=MAX_TOKENS)))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return round(peak_bytes / len(lengths), 1)


def check_budgets(address: str, lengths: list[int], console: Console) -> dict[str, Any]:
    """Return what was predicted for each length, how far budgets pass it, and the batches they make of the lengths."""
    predicted = {
        length: brim.predict(f"{HERE}/{address}", gpu=GPU, case={"seq_len": length}).largest
        for length in sorted((*MEASURED, *BETWEEN))
    }
    largest = {length: predicted[length] for length in MEASURED}
    # The most tokens that fit at every measured length, with the same margin.
    max_tokens = int(min(length * size for length, size in largest.items()) * (1 - MARGIN))
    result: dict[str, Any] = {"predicted": predicted, "max_tokens": max_tokens, "budgets": {}}
    for name, options in {"next longer": {}, "interpolated": {"interpolate": True}}.items():
        bare = make_budget(largest=largest, max_tokens=None, margin=0.0, **options)
        budget = make_budget(largest=largest, max_tokens=None, **options)
        sampler = brim.TokenBudgetSampler(lengths, largest=largest, **options)
        result["budgets"][name] = {
            "most_per_predicted_without_margin": _most(bare, predicted),
            "most_per_predicted": _most(budget, predicted),
            "num_batches": len(sampler),
        }
    sampler = brim.TokenBudgetSampler(lengths, max_tokens=max_tokens)
    allowed = {length: max_tokens // length for length in predicted}
    most = max(allowed[length] / size for length, size in predicted.items())
    result["budgets"]["tokens"] = {"most_per_predicted": round(most, 3), "num_batches": len(sampler)}
    console.print(f"{address}: {json.dumps(result['budgets'])}")
    return result


def check_targets(
    outcomes: dict[str, dict[str, Outcome]], held: dict[int, float], memory: dict[str, Any]
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
        measured = f"{ours.padding_efficiency:.1%} against {best:.1%}"
        met = ours.padding_efficiency >= best
        targets.append(Target(what=f"{name}, brim", wanted="no more padding than any peer", measured=measured, met=met))
    spread = max(held.values()) / min(held.values())
    measured = f"{max(held.values()):.0f} bytes a sample, ± {spread - 1:.1%}"
    targets.append(Target(what="memory of planning", wanted="linear", measured=measured, met=spread < 1.1))
    for name, checked in memory.items():
        most = max(checked["budgets"][kind]["most_per_predicted"] for kind in ("next longer", "interpolated"))
        measured = f"{most:.1%} of what fits"
        targets.append(
            Target(what=f"budgets, {name}", wanted="never above what fits", measured=measured, met=most <= 1)
        )
    return targets


def print_outcomes(name: str, outcomes: dict[str, Outcome], console: Console) -> None:
    """Print a row for each batcher."""
    table = Table(title=f"{name}: at most {MAX_TOKENS:,} tokens in a batch", title_justify="left")
    table.add_column("batcher")
    for heading in ("batches", "no padding", "above", "every index once", "CPU seconds"):
        table.add_column(heading, justify="right")
    for batcher, outcome in outcomes.items():
        cells = (f"{outcome.num_batches:,}", f"{outcome.padding_efficiency:.1%}", f"{outcome.num_above:,}")
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
        print_outcomes(name, outcomes[name], console)
    texts = datasets["texts"]
    held = {size: traced_bytes_per_sample(texts[:size]) for size in (len(texts) // 4, len(texts) // 2, len(texts))}
    memory = {name: check_budgets(address, texts, console) for name, address in WORKLOADS.items()}
    targets = check_targets(outcomes, held, memory)
    print_targets(targets, console)
    document = {
        "environment": _environment(),
        "num_samples": options.num_samples,
        "max_tokens": MAX_TOKENS,
        "lengths": {name: {batcher: o.to_dict() for batcher, o in of.items()} for name, of in outcomes.items()},
        "planning_bytes_per_sample": held,
        "memory": {"gpu": GPU, "measured": MEASURED, "margin": MARGIN, "workloads": memory},
        "targets": [target.to_dict() for target in targets],
    }
    options.out.write_text(json.dumps(document, indent=2) + "\n")
    console.print(f"Written: {options.out}")


def _most(budget: Any, predicted: dict[int, int]) -> float:
    return round(max(budget.largest_at(length) / size for length, size in predicted.items()), 3)


def _environment() -> dict[str, Any]:
    versions = {package: importlib.metadata.version(package) for package in _PACKAGES}
    return {"python": platform.python_version(), "cpu_count": os.cpu_count(), **versions}


if __name__ == "__main__":
    main()
