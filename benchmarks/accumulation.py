"""Measure `brim.Accumulator`: what it costs beside a hand-written loop, and whose gradients equal the full batch's.

Cost: windows of a hand-written loop and of the Accumulator take turns, on one thread, with AdamW and clipping, timed as
CPU time of the process, so that other work on the machine does not count. A model whose microbatch takes about 10 ms
gives the ratio; one that takes next to nothing gives the cost itself, in seconds. Where the windows have different
numbers of items, the gradient is put right in a pass of its own over the parameters.

Equality: a small decoder is trained for one epoch on ten microbatches of texts of which different shares are ignored,
in windows of four, by each loop in its documented style. `brim.audit` holds every update against the gradient of the
mean loss over all labels of its window.

    python benchmarks/accumulation.py [--out FILE]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import logging
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F

import brim
from accumulation_loops import ACCUMULATION, LOOPS, make_batches
from report import Target, make_console, print_targets

DEFAULT_OUT = Path(__file__).resolve().parent / "results" / "accumulation.json"
CLIP_NORM = 1.0
# Batch, width and number of layers. The first takes about 10 ms for a microbatch on one thread.
SIZES = {"10 ms": (128, 320, 8), "10 ms, unequal windows": (128, 320, 8), "tiny": (1, 8, 2)}
NUM_WINDOWS = {"10 ms": 300, "10 ms, unequal windows": 300, "tiny": 2000}
_PACKAGES = ("brim", "torch", "transformers", "accelerate", "lightning")


def time_windows(name: str, num_windows: int) -> dict[str, float]:
    """Return the seconds of a microbatch in a hand-written loop, and what the Accumulator adds to it."""
    batch, width, num_layers = SIZES[name]
    x, y = torch.randn(batch, width), torch.randint(0, width, (batch,))
    varies = "unequal" in name
    loops = {
        "by hand": _by_hand(_mlp(width, num_layers), x, y),
        "brim": _with_brim(_mlp(width, num_layers), x, y, varies=varies),
    }
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for turn in range(num_windows):
        # Who goes first changes, so that what follows the other's garbage is shared.
        for loop in sorted(loops, reverse=turn % 2 == 1):
            started = time.process_time()
            loops[loop]()
            seconds[loop].append((time.process_time() - started) / ACCUMULATION)
    by_hand = statistics.median(seconds["by hand"])
    added = statistics.median(ours - theirs for ours, theirs in zip(seconds["brim"], seconds["by hand"], strict=True))
    return {"by_hand_seconds": by_hand, "added_seconds": added, "added_share": added / by_hand}


def _mlp(width: int, num_layers: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(num_layers) for layer in (nn.Linear(width, width), nn.ReLU())))


def _by_hand(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters())

    def window() -> None:
        for _ in range(ACCUMULATION):
            (F.cross_entropy(model(x), y) / ACCUMULATION).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()

    return window


def _with_brim(model: nn.Module, x: torch.Tensor, y: torch.Tensor, *, varies: bool) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters())
    acc = brim.Accumulator(model, optimizer, accumulation=ACCUMULATION, clip_norm=CLIP_NORM)

    numbers = itertools.count()

    def window() -> None:
        more = next(numbers) % 2 if varies else 0
        for _ in range(ACCUMULATION):
            acc.backward(F.cross_entropy(model(x), y, reduction="sum"), items=len(y) + more)

    return window


def compare_gradients() -> dict[str, Any]:
    """Return for each loop the windows of its audit."""
    found = {}
    for name, audit in LOOPS.items():
        report = audit(make_batches())
        found[name] = {
            "causes": [str(cause) for cause in report.causes],
            "windows": [
                {
                    "num_microbatches": window.num_microbatches,
                    "items": window.items,
                    "ratio": round(window.ratio, 6),
                    "difference": float(f"{window.difference:.3g}"),
                    "causes": [str(cause) for cause in window.causes],
                }
                for window in report.windows
            ],
        }
    return found


def print_tables(cost: dict[str, Any], gradients: dict[str, Any], console: Console) -> None:
    """Print what was measured."""
    table = Table(title="Cost of a microbatch", title_justify="left")
    for heading in ("model", "by hand", "added by brim", "share"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for name, row in cost.items():
        by_hand, added = row["by_hand_seconds"] * 1e3, row["added_seconds"] * 1e6
        table.add_row(name, f"{by_hand:.3f} ms", f"{added:.1f} µs", f"{row['added_share']:.2%}")
    console.print(table)
    table = Table(title="Gradient of each window, as a multiple of the full batch's", title_justify="left")
    for heading in ("loop", "window 1", "window 2", "tail", "largest difference", "causes"):
        table.add_column(heading)
    for name, row in gradients.items():
        ratios = [f"{window['ratio']:.4f}" for window in row["windows"]]
        largest = max(window["difference"] for window in row["windows"])
        table.add_row(name, *ratios, f"{largest:.1e}", ", ".join(row["causes"]) or "–")
    console.print(table)


def check_targets(cost: dict[str, Any], gradients: dict[str, Any]) -> list[Target]:
    """Return what brim is held to."""
    of_ten_ms = cost["tiny"]["added_seconds"] / 0.010
    apart = max(window["difference"] for window in gradients["brim.Accumulator"]["windows"])
    shares = {name: row["added_share"] for name, row in cost.items() if name != "tiny"}
    return [
        *(
            Target(what=f"cost, {name}", wanted="at most 1%", measured=f"{share:.2%}", met=share <= 0.01)
            for name, share in shares.items()
        ),
        Target(what="cost itself, of 10 ms", wanted="at most 1%", measured=f"{of_ten_ms:.2%}", met=of_ten_ms <= 0.01),
        Target(
            what="brim.Accumulator, float32", wanted="within 1e-5", measured=f"{apart:.1e} apart", met=apart <= 1e-5
        ),
    ]


def main() -> None:
    """Measure, print the tables and the targets, and write the raw numbers."""
    parser = argparse.ArgumentParser(description="Measure brim.Accumulator beside other loops.")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="where to write the numbers")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")  # the frameworks' own, about workers and deprecations
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    console = make_console()
    for name in SIZES:
        time_windows(name, num_windows=10)  # the first windows pay for imports and the allocator
    cost = {name: time_windows(name, num_windows=NUM_WINDOWS[name]) for name in SIZES}
    gradients = compare_gradients()
    targets = check_targets(cost, gradients)
    print_tables(cost, gradients, console)
    print_targets(targets, console)
    versions = {package: importlib.metadata.version(package) for package in _PACKAGES}
    document = {
        "environment": {"python": platform.python_version(), "cpu_count": os.cpu_count(), **versions},
        "accumulation": ACCUMULATION,
        "sizes": {name: dict(zip(("batch", "width", "num_layers"), size, strict=True)) for name, size in SIZES.items()},
        "num_windows": NUM_WINDOWS,
        "cost": cost,
        "gradients": gradients,
        "targets": [target.to_dict() for target in targets],
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=2) + "\n")
    console.print(f"Written: {options.out}")


if __name__ == "__main__":
    main()
