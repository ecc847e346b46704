"""Check the goal `fastest` against brute force: every size up to a cap is timed and held against brim's choice.

Equal runs differ on a shared machine, also in CPU time, because caches and the memory's bandwidth are shared. So in
brute force every size has a process of its own, as in a job, which runs one size only, and the processes take turns,
all of them in every round: what else the machine does meets all sizes alike. The best of 24 noisy rates is too high,
for what was lucky was chosen for its luck, and processes have luck that lasts as long as they do, with where their
memory lies. So several generations of processes follow each other, half of which say which size is the best and the
others by how much, and the other way round; a choice that is better than either has more than 100%. A round is one
comparison of all sizes, and the median of the rounds decides; what the quickest turns would say is noted beside it. The
first step of a turn is not timed: the processes that ran before it have had the caches, which is so in no job.
Steps are timed by the CPU time of one thread, in brim's probes as well.

All processes run with settings of glibc's allocator that let it keep what was freed, as CUDA's does. With its own it
gives large tensors back to the system and has their pages zeroed anew in every step, for some sizes and not for others:
then the steps of one process differ by a factor of two, and so do neighbouring sizes.

    python benchmarks/throughput.py [--cap N] [--repeat N] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

import brim
from brim.cases import Case
from brim.planning.throughput import rates_of_races
from brim.workload import Workload, load, prepare
from report import Target, make_console, print_targets

HERE = Path(__file__).resolve().parent
DEFAULT_OUT = HERE / "results" / "throughput.json"
WORKLOADS = (
    *(f"{HERE}/steady_workloads.py:{name}" for name in ("ConvNet", "LongAttention", "EmbeddingMlp")),
    f"{HERE}/steady_gpt2.py:Gpt2",
)
CAP = 24
# Searches of each workload.
NUM_SEARCHES = 3
NUM_GENERATIONS = 6
NUM_ROUNDS = 10
NUM_WARM_UP_STEPS = 3
# A turn takes at least this long, and one step.
TURN_SECONDS = 0.04
# The allocator's are read when a process starts, torch's when it is imported.
KEEPING_ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
    "OMP_NUM_THREADS": "1",
}


def take_turns(workload_class: type[Workload], size: int, pipe: Any) -> None:
    """Run a size and send the time of a step for every turn that is asked for."""
    workload = prepare(workload_class, Case({}), torch.device("cpu"))
    workload.build()
    batch = workload.batch(size)
    for _ in range(NUM_WARM_UP_STEPS):
        workload.step(batch)
    while pipe.recv():
        workload.step(batch)  # the others have had the caches since the last turn, as in no job
        started, num_steps, seconds = time.process_time(), 0, 0.0
        while seconds < TURN_SECONDS:
            workload.step(batch)
            num_steps += 1
            seconds = time.process_time() - started
        pipe.send(seconds / num_steps)


def time_sizes(workload_class: type[Workload], sizes: Sequence[int]) -> dict[int, list[float]]:
    """Return the time of a step in every round, each size in a process of its own."""
    context = multiprocessing.get_context("fork")
    pipes, processes = {}, []
    for size in sizes:
        pipes[size], other = context.Pipe()
        processes.append(context.Process(target=take_turns, args=(workload_class, size, other), daemon=True))
        processes[-1].start()
    timings: dict[int, list[float]] = {size: [] for size in sizes}
    for num_round in range(NUM_ROUNDS):
        for size in sizes if num_round % 2 else reversed(sizes):
            pipes[size].send(True)
            timings[size].append(pipes[size].recv())
    for pipe, process in zip(pipes.values(), processes, strict=True):
        pipe.send(False)
        process.join()
    return timings


def together(generations: Sequence[Mapping[int, Sequence[float]]]) -> dict[int, list[float]]:
    """Return the rounds of all generations one after the other."""
    return {size: [lap for laps in generations for lap in laps[size]] for size in generations[0]}


def shares_of_best(generations: Sequence[Mapping[int, Sequence[float]]]) -> dict[int, float]:
    """Return the rate of every size as a share of the best one's, of which other processes say which it is."""
    judged = [rates_of_races([together(generations[part::2])]) for part in (0, 1)]
    best = [max(rates, key=lambda size: rates[size]) for rates in judged]
    return {
        size: statistics.geometric_mean([judged[1][size] / judged[1][best[0]], judged[0][size] / judged[0][best[1]]])
        for size in generations[0]
    }


def measure(address: str, *, cap: int, num_searches: int) -> dict[str, Any]:
    """Compare brim's choices with the best of all sizes."""
    settings = {"goal": "fastest", "cap": cap, "device": "cpu", "memory": "4GiB", "cache": False}
    findings = [brim.find(address, **settings)[0] for _ in range(num_searches)]
    workload_class = load(address)
    generations = [time_sizes(workload_class, range(1, cap + 1)) for _ in range(NUM_GENERATIONS)]
    timings = together(generations)
    rates, shares = rates_of_races([timings]), shares_of_best(generations)
    quickest = {size: size / min(seconds) for size, seconds in timings.items()}
    return {
        "workload": address.rpartition(":")[2],
        "chosen": [finding.microbatch for finding in findings],
        "num_probes": [len(finding.probes) for finding in findings],
        "seconds": [round(finding.seconds, 2) for finding in findings],
        "best": max(rates, key=lambda size: rates[size]),
        "smallest_within_5%": min(size for size, share in shares.items() if share >= 0.95),
        "shares_of_best": [round(shares[finding.microbatch or 1], 4) for finding in findings],
        "largest_share_of_best": round(shares[cap], 4),
        "quickest_shares_of_best": [
            round(quickest[finding.microbatch or 1] / max(quickest.values()), 4) for finding in findings
        ],
        "raced": [
            {rate["microbatch"]: round(rate["samples_per_second"], 2) for rate in (finding.throughput or {})["rates"]}
            for finding in findings
        ],
        "brute_force": {size: round(rate, 2) for size, rate in rates.items()},
        "quickest": {size: round(rate, 2) for size, rate in quickest.items()},
    }


def main() -> None:
    """Run the comparison, print it and write it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cap", type=int, default=CAP)
    parser.add_argument("--repeat", type=int, default=NUM_SEARCHES)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    options = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in KEEPING_ALLOCATOR.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEPING_ALLOCATOR})
    results = [measure(address, cap=options.cap, num_searches=options.repeat) for address in WORKLOADS]
    console = make_console()
    table = Table("workload", "chosen", "probes", "of the best rate", "best", "within 5% from", f"at {options.cap}")
    for row in results:
        table.add_row(
            row["workload"],
            ", ".join(map(str, row["chosen"])),
            ", ".join(map(str, row["num_probes"])),
            ", ".join(f"{share:.1%}" for share in row["shares_of_best"]),
            str(row["best"]),
            str(row["smallest_within_5%"]),
            f"{row['largest_share_of_best']:.1%}",
        )
    console.print(table)
    worst = min(share for row in results for share in row["shares_of_best"])
    most = max(num_probes for row in results for num_probes in row["num_probes"])
    targets = [
        Target(what="the choice's share of the best rate", wanted="≥ 95%", measured=f"{worst:.1%}", met=worst >= 0.95),
        Target(what="probes", wanted="≤ 6", measured=str(most), met=most <= 6),
    ]
    print_targets(targets, console)
    document = {
        "cap": options.cap,
        "machine": {"cpu_count": os.cpu_count(), "platform": platform.machine(), "threads": 1},
        "variables": KEEPING_ALLOCATOR,
        "torch": torch.__version__,
        "targets": [target.to_dict() for target in targets],
        "results": results,
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
