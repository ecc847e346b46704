"""What a sweep costs: overhead of a trial beside Optuna's grid sampler and Ray Tune, and grids of a million.

200 trials that do nothing, each sweeper in a fresh process. What they do for it differs, and the table says how: brim
runs every trial in a fresh process and has each result on disk before it counts; Optuna calls a function in its own
process. A trial's overhead is the time of the whole sweep, its start included, over the number of trials.

    python benchmarks/sweeping.py [--trials N] [--repeat N] [--out FILE]
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

from sweep_peers import COUNTERS, MILLION, SWEEPERS

HERE = Path(__file__).resolve().parent
DEFAULT_OUT = HERE / "results" / "sweeping.json"
# Where a trial runs, and whether a sweep that was killed goes on where it stopped.
PROMISES = {
    "brim function": ("fresh process", True),
    "brim function, one a core": ("fresh process", True),
    "brim command": ("fresh process", True),
    "brim on Ray": ("fresh process", True),
    "brim, of a million": ("fresh process", True),
    "Optuna, in memory": ("the sweep's own process", False),
    "Optuna, SQLite": ("the sweep's own process", True),
    "Ray Tune": ("an actor of its own", True),
}
_PACKAGES = ("brim", "optuna", "ray")
_LONGEST_SECONDS = 1800.0


def measure(*arguments: str) -> dict[str, Any]:
    """Run one sweeper in a fresh process and folder and return what it told."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "sweep_peers.py", *arguments, folder]
        environment = {**os.environ, "RAY_AIR_NEW_OUTPUT": "0", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}
        run = subprocess.run(
            command, cwd=HERE, capture_output=True, text=True, timeout=_LONGEST_SECONDS, env=environment
        )
    if run.returncode != 0:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{run.stderr[-4000:]}")
    told: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return told


def measure_overhead(name: str, num_trials: int, repeat: int) -> dict[str, Any]:
    """Return the median time of a sweeper, and that of one trial."""
    runs = [measure(name, str(num_trials)) for _ in range(repeat)]
    assert all(run["num_done"] == num_trials for run in runs), runs
    seconds = statistics.median(run["seconds"] for run in runs)
    runs_in, resumes = PROMISES[name]
    return {
        "seconds": seconds,
        "seconds_per_trial": seconds / num_trials,
        "peak_bytes": statistics.median(run["peak_bytes"] for run in runs),
        "runs_in": runs_in,
        "resumes": resumes,
        "of_each": [run["seconds"] for run in runs],
    }


def measure_million(repeat: int) -> dict[str, Any]:
    """Return how long counting a million trials and making the first takes, and what memory."""
    figures = {}
    for name in COUNTERS:
        runs = [measure("--million", name) for _ in range(repeat)]
        figures[name] = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    figures["brim, dry run"] = measure_dry_run(repeat)
    return figures


def measure_dry_run(repeat: int) -> dict[str, Any]:
    """Return the time and memory of the whole command on a million trials."""
    seconds, peaks = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "grid.yaml"
        path.write_text(json.dumps({"command": "true {config}", "sweep": {"product": MILLION}}))
        command = [sys.executable, "-m", "brim", "sweep", str(path), "--dry-run"]
        for _ in range(repeat):
            started = time.perf_counter()
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            assert status == 0, status
            seconds.append(time.perf_counter() - started)
            peaks.append(usage.ru_maxrss * 1024)
    return {"count": 10**6, "command_seconds": statistics.median(seconds), "peak_bytes": statistics.median(peaks)}


def print_overhead(console: Console, figures: dict[str, dict[str, Any]]) -> None:
    """Print a row for each sweeper."""
    table = Table(title="200 trials that do nothing")
    for column in ("sweeper", "a trial runs in", "goes on after a kill", "ms a trial", "memory of the sweep"):
        table.add_column(column)
    for name, row in figures.items():
        milliseconds = f"{row['seconds_per_trial'] * 1000:.1f}"
        megabytes = f"{row['peak_bytes'] / 2**20:.0f} MiB"
        table.add_row(name, row["runs_in"], "yes" if row["resumes"] else "no", milliseconds, megabytes)
    console.print(table)


def print_million(console: Console, figures: dict[str, dict[str, Any]]) -> None:
    """Print what a grid of a million costs before the first trial runs."""
    for name, row in figures.items():
        told = ", ".join(f"{key} {value:,.6g}" for key, value in row.items())
        console.print(f"{name}: {told}")


def main() -> None:
    """Measure everything, print it and write it down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    options = parser.parse_args()
    console = Console(width=120)
    overhead = {}
    for name in SWEEPERS:
        overhead[name] = measure_overhead(name, options.trials, options.repeat)
        console.print(f"{name}: {overhead[name]['seconds']:.2f} s")
    million = measure_million(options.repeat)
    print_overhead(console, overhead)
    print_million(console, million)
    document = {
        "command": "python benchmarks/sweeping.py",
        "num_trials": options.trials,
        "repeat": options.repeat,
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[1]},
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "overhead": overhead,
        "million": million,
    }
    options.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
