"""Measure what several ranks cost `brim.find`: the time to the answer on two ranks relative to one.

The workloads of `workloads.py`, with DDP around their models, under a limit for every rank. Both searches use one
thread for each rank, so the steps themselves cost as much, and take turns, so that other work on the machine weighs on
both. What a torchrun job costs that starts its processes afresh, as people start theirs, is measured beside it.

    python benchmarks/ranks.py [--rounds N] [--out FILE]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import brim
from report import make_console
from workloads import ConvNet, EmbeddingMlp, LongAttention

DEFAULT_OUT = Path(__file__).resolve().parent / "results" / "ranks.json"
MEMORY = "768MiB"
NUM_RANKS = (1, 2)
_FRESH_JOB = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""


class RankedConvNet(ConvNet):
    """The same on several ranks."""

    wrap = "ddp"


class RankedAttention(LongAttention):
    """The same on several ranks."""

    wrap = "ddp"


class RankedEmbedding(EmbeddingMlp):
    """The same on several ranks."""

    wrap = "ddp"


WORKLOADS = (RankedConvNet, RankedAttention, RankedEmbedding)


def measure(workload: type[brim.Workload], num_ranks: int) -> dict[str, Any]:
    """Search once and return the answer with what it cost."""
    started = time.perf_counter()
    finding = brim.find(workload, device="cpu", memory=MEMORY, ranks=num_ranks, cache=False)[0]
    return {
        "workload": workload.__name__,
        "ranks": num_ranks,
        "microbatch": finding.microbatch,
        "confirmed": finding.confirmed,
        "num_probes": len(finding.probes),
        "peak_bytes": finding.peak_bytes,
        "seconds": time.perf_counter() - started,
    }


def time_fresh_job() -> float:
    """Return the seconds of a torchrun job of two ranks that do nothing but meet."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(_FRESH_JOB)
        script.flush()
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        started = time.perf_counter()
        subprocess.run([*launcher, script.name], check=True, capture_output=True)
        return time.perf_counter() - started


def print_table(searches: list[dict[str, Any]], ratios: dict[str, float], console: Console) -> None:
    """Print the searches, one a row."""
    table = Table(title=f"Time to the answer under {MEMORY} for each rank", title_justify="left")
    for name in ("workload", "ranks", "microbatch", "probes", "seconds", "2 ranks / 1"):
        table.add_column(name, justify="left" if name == "workload" else "right")
    for search in searches:
        ratio = f"{ratios[search['workload']]:.2f}" if search["ranks"] == NUM_RANKS[-1] else ""
        numbers = (search["ranks"], search["microbatch"], search["num_probes"], f"{search['seconds']:.1f}", ratio)
        table.add_row(search["workload"], *map(str, numbers))
    console.print(table)


def main() -> None:
    """Measure, print the table and write the numbers."""
    parser = argparse.ArgumentParser(description="Measure brim.find on two ranks beside one.")
    parser.add_argument("--rounds", type=int, default=1, help="how often each search is made")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="where to write the numbers")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    console = make_console()
    searches = [
        measure(workload, num_ranks) for _ in range(options.rounds) for workload in WORKLOADS for num_ranks in NUM_RANKS
    ]

    def seconds(workload: type[brim.Workload], num_ranks: int) -> float:
        of_both = (workload.__name__, num_ranks)
        return statistics.median(s["seconds"] for s in searches if (s["workload"], s["ranks"]) == of_both)

    ratios = {workload.__name__: seconds(workload, 2) / seconds(workload, 1) for workload in WORKLOADS}
    fresh_job_seconds = time_fresh_job()
    print_table(searches, ratios, console)
    console.print(f"A torchrun job of two ranks that only meet: {fresh_job_seconds:.1f} s")
    versions = {package: importlib.metadata.version(package) for package in ("brim", "torch")}
    document = {
        "environment": {"python": platform.python_version(), "cpu_count": os.cpu_count(), **versions},
        "memory": MEMORY,
        "searches": searches,
        "ratios": ratios,
        "median_ratio": statistics.median(ratios.values()),
        "fresh_job_seconds": fresh_job_seconds,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=2) + "\n")
    console.print(f"Written: {options.out}")


if __name__ == "__main__":
    main()
