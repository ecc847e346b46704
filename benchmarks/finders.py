"""Compare finders of the largest batch: brim's strategies, Accelerate, Lightning, against the truth.

Four workloads are trained on the CPU under one limit, RLIMIT_DATA, the kernel's limit on a process's private writable
memory. Every finder has a fresh process and is timed from its start to its end, imports included. All are given the
same cap for a workload, the smallest power of two that is at least twice the truth, and run three steps a probe. The
workloads have no case, so brim's `estimate` starts from the cap itself (scale 1.0).

All processes have a fixed threshold above which glibc gives a tensor a mapping of its own. By itself glibc moves the
threshold up to 32 MiB, and tensors below it live in a heap whose holes are an accident of the process: equal processes
then differ by 2% of the limit, on GPT-2 5% of the batch, and so does the truth. `--heap` leaves it at that.

The truth is the largest size that a bisection found, each size in a fresh process (see `truth.py`). Three bisections
are made and their median is the truth, and every answer also runs once more in a fresh process, recorded as
`fits_again`.

    python benchmarks/finders.py [--only WORKLOAD] [--repeat N] [--heap] [--out FILE]
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
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

import footprint
from report import Run, WorkloadResult, check_targets, make_console, print_table, print_targets

HERE = Path(__file__).resolve().parent
DEFAULT_OUT = HERE / "results" / "finders.json"
HEAP_OUT = HERE / "results" / "finders-heap.json"
LIMIT_BYTES = 768 * 2**20
# What glibc starts with, in bytes; setting it keeps it there.
STEADY_ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(128 * 2**10)}
NUM_STEPS = 3
NUM_BISECTIONS = 3
WORKLOADS = {
    "gpt2": "gpt2.py:Gpt2",
    "convnet": "workloads.py:ConvNet",
    "attention": "workloads.py:LongAttention",
    "embedding": "workloads.py:EmbeddingMlp",
}
STRATEGIES = ("guided", "estimate", "doubling")
PEERS = ("accelerate", "lightning-power", "lightning-binsearch")
_PACKAGES = ("brim", "torch", "transformers", "accelerate", "lightning")
# Far above what any finder takes: one that hangs must not stop the comparison.
_LONGEST_SECONDS = 900.0


def run_brim(strategy: str, address: str, cap: int) -> Run:
    """Search with one of brim's strategies, through the command line."""
    bounds = ["--cap", str(cap), "--steps", str(NUM_STEPS), "--strategy", strategy]
    memory = footprint.memory_options(LIMIT_BYTES)
    command = [footprint.BRIM, "find", address, "--json", "--no-cache", *memory, *bounds]
    seconds, output, error = _run(command)
    if error is not None:
        return Run(seconds=seconds, error=error)
    finding = json.loads(output)["findings"][0]
    verdicts = [probe["verdict"] for probe in finding["probes"]]
    kept = ("microbatch", "verdict", "peak_bytes", "step_seconds")
    return Run(
        seconds=seconds,
        answer=finding["microbatch"],
        num_probes=len(verdicts),
        num_ooms=verdicts.count("oom"),
        details={
            **{name: finding[name] for name in ("stopped_by", "confirmed", "predicted", "peak_bytes")},
            "case_seconds": finding["seconds"],
            "probes": [{name: probe[name] for name in kept} for probe in finding["probes"]],
        },
    )


def run_peer(peer: str, address: str, cap: int) -> Run:
    """Search with a peer, in a process of its own."""
    limits = ["--cap", str(cap), "--limit-bytes", str(LIMIT_BYTES), "--steps", str(NUM_STEPS)]
    seconds, output, error = _run([sys.executable, "peers.py", peer, address, *limits])
    if error is not None:
        return Run(seconds=seconds, error=error)
    told = json.loads(output.splitlines()[-1])
    return Run(
        seconds=seconds,
        answer=told["answer"],
        num_probes=told["num_probes"],
        num_ooms=told["num_ooms"],
        error=told["error"],
        details={"sizes": told["sizes"], "out_of_memory": told["out_of_memory"]},
    )


def find_truth(address: str) -> dict[str, Any]:
    """Return the median of the bisections' truths, with the trials of all and the workload's sizes."""
    outputs = [_check(_run(_truth_command(address))) for _ in range(NUM_BISECTIONS)]
    bisections: list[dict[str, Any]] = [json.loads(output.splitlines()[-1]) for output in outputs]
    truths = [bisection["truth"] for bisection in bisections]
    trials = [trial for bisection in bisections for trial in bisection["trials"]]
    return {"truth": statistics.median_low(truths), "truths": truths, "trials": trials, "sizes": bisections[0]["sizes"]}


def run_again(address: str, answers: list[int]) -> dict[int, bool]:
    """Return for each answer whether it fits once more, in a fresh process."""
    if not answers:
        return {}
    output = _check(_run([*_truth_command(address), "--check", *map(str, answers)]))
    return {trial["size"]: trial["fits"] for trial in json.loads(output.splitlines()[-1])}


def compare(name: str, *, repeat: int, console: Console) -> WorkloadResult:
    """Run the truth, then every finder `repeat` times, on one workload."""
    address = WORKLOADS[name]
    truth = find_truth(address)
    cap = 2 ** (2 * truth["truth"] - 1).bit_length()
    console.print(f"{name}: the truth is {truth['truth']} (median of {truth['truths']}), the cap {cap}")
    finders: dict[str, Callable[[], Run]] = {
        **{f"brim {strategy}": partial(run_brim, strategy, address, cap) for strategy in STRATEGIES},
        **{peer: partial(run_peer, peer, address, cap) for peer in PEERS},
    }
    runs: dict[str, list[Run]] = {finder: [] for finder in finders}
    for _ in range(repeat):
        for finder, search in finders.items():
            run = search()
            runs[finder].append(run)
            console.print(f"  {finder}: {run.answer} in {run.seconds:.1f} s")
    answers = sorted({run.answer for of_finder in runs.values() for run in of_finder if run.answer is not None})
    return WorkloadResult(
        name=name,
        address=address,
        sizes=truth["sizes"],
        truth=truth["truth"],
        truths=truth["truths"],
        truth_trials=truth["trials"],
        cap=cap,
        runs=runs,
        fits_again=run_again(address, answers),
    )


def environment() -> dict[str, Any]:
    """Return what the figures depend on beside the code."""
    versions = {package: importlib.metadata.version(package) for package in _PACKAGES}
    # Settings of the allocator and of the thread pool change what fits and how long it takes.
    variables = {name: value for name, value in os.environ.items() if name.startswith(("MALLOC_", "OMP_", "MKL_"))}
    return {"python": platform.python_version(), "cpu_count": os.cpu_count(), **versions, "variables": variables}


def main() -> None:
    """Compare, print the tables and the targets, and write the raw numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=sorted(WORKLOADS), metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="runs of each finder")
    parser.add_argument("--heap", action="store_true", help="leave glibc's allocator as it is")
    parser.add_argument("--out", type=Path, help="where to write the numbers; default: results/finders[-heap].json")
    options = parser.parse_args()
    if options.repeat < 1:
        parser.error(f"--repeat is {options.repeat}. Use a whole number of at least 1.")
    # A part of the comparison must not replace the whole by accident.
    out = options.out or (None if options.only else HEAP_OUT if options.heap else DEFAULT_OUT)
    if not options.heap:
        os.environ.update(STEADY_ALLOCATOR)  # every finder and the truth are processes of their own, which inherit it
    console = make_console()
    results = []
    for name in [options.only] if options.only else WORKLOADS:
        results.append(compare(name, repeat=options.repeat, console=console))
        print_table(results[-1], console)
    brim_itself = footprint.measure(WORKLOADS["convnet"], limit_bytes=LIMIT_BYTES, cwd=HERE)
    targets = check_targets(results, brim_itself)
    print_targets(targets, console)
    if out is None:
        console.print("Not written: pass --out FILE to keep the numbers of a part.")
        return
    document = {
        "environment": environment(),
        "limit_bytes": LIMIT_BYTES,
        "num_steps": NUM_STEPS,
        "repeat": options.repeat,
        "brim_itself": brim_itself,
        "workloads": {result.name: result.to_dict() for result in results},
        "targets": [target.to_dict() for target in targets],
    }
    _write(out, document)
    console.print(f"Written: {out}")


def _truth_command(address: str) -> list[str]:
    return [sys.executable, "truth.py", address, "--limit-bytes", str(LIMIT_BYTES), "--steps", str(NUM_STEPS)]


def _run(command: list[str]) -> tuple[float, str, str | None]:
    """Return the seconds a command took, its standard output, and why it gave no answer, or None."""
    started = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=HERE, timeout=_LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        return _LONGEST_SECONDS, "", f"no answer within {_LONGEST_SECONDS:g} s"
    seconds = round(time.perf_counter() - started, 3)
    if done.stdout.strip():
        return seconds, done.stdout, None
    lines = done.stderr.strip().splitlines()
    return seconds, "", lines[-1] if lines else f"ended with exit code {done.returncode} in silence"


def _check(ended: tuple[float, str, str | None]) -> str:
    _, output, error = ended
    if error is not None:
        raise SystemExit(f"The truth could not be found: {error}")
    return output


def _write(path: Path, document: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
