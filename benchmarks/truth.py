"""The largest batch that fits, by bisection in fresh processes: what the finders are measured against.

Each size has a process of its own, forked from one that has only imported things, with the limit set before anything
is built. A size fits if all its steps run. The truth is the largest size that the bisection found to fit; the
allocator differs a little from run to run and from size to size, so a larger one may fit too, and the same one may
fail another time.

    python truth.py workloads.py:ConvNet --limit-bytes 805306368 --steps 3
    python truth.py workloads.py:ConvNet --limit-bytes 805306368 --steps 3 --check 100 200
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch._dynamo  # noqa: F401  the first optimizer of a process imports it: once here, not once for every size

from brim import Workload
from trials import end_with, limit_memory, load, make, run_steps

# How much larger each size is than the one before, until one does not fit.
_STRIDE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How one size went in a process of its own."""

    size: int
    fits: bool
    seconds: float
    detail: str = ""


def try_size(workload_class: type[Workload], size: int, *, limit_bytes: int, steps: int) -> Trial:
    """Run the steps in a forked process."""
    started = time.perf_counter()
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write_end, _outcome(workload_class, size, limit_bytes, steps).encode()[:1000])
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        outcome = pipe.read() or "the process died"
    os.waitpid(pid, 0)
    fits = outcome == "fits"
    seconds = time.perf_counter() - started
    return Trial(size=size, fits=fits, seconds=round(seconds, 3), detail="" if fits else outcome)


def _outcome(workload_class: type[Workload], size: int, limit_bytes: int, steps: int) -> str:
    limit_memory(limit_bytes)
    try:
        run_steps(workload_class, size, steps=steps)
    except Exception as error:  # noqa: BLE001  a size that cannot run does not fit, whatever it raises
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return "fits"


def bisect(trial_of: Callable[[int], Trial]) -> tuple[int, list[Trial]]:
    """Return the largest size that fits and every trial: up in strides until one fails, then halving the gap."""
    trials = [trial_of(1)]
    if not trials[0].fits:
        raise SystemExit(f"Not even a batch of 1 runs: {trials[0].detail}")
    low, high = 1, _STRIDE
    while True:
        trials.append(trial_of(high))
        if not trials[-1].fits:
            break
        low, high = high, high * _STRIDE
    while high - low > 1:
        middle = (low + high) // 2
        trials.append(trial_of(middle))
        low, high = (middle, high) if trials[-1].fits else (low, middle)
    return low, trials


def describe(workload_class: type[Workload]) -> dict[str, Any]:
    """Return the sizes that the workload's constants give, and how many parameters that makes."""
    workload = make(workload_class)
    workload.build()
    sizes = {name.lower(): value for name, value in vars(workload_class).items() if name.isupper()}
    return {**sizes, "num_parameters": sum(parameter.numel() for parameter in workload.model.parameters())}


def main() -> None:
    """Print the truth, or the trials of the sizes to check, as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("address")
    parser.add_argument("--limit-bytes", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--check", type=int, nargs="+", default=[])
    options = parser.parse_args()
    workload_class = load(options.address)

    def trial_of(size: int) -> Trial:
        return try_size(workload_class, size, limit_bytes=options.limit_bytes, steps=options.steps)

    if options.check:
        end_with(json.dumps([asdict(trial_of(size)) for size in options.check]))
    largest, trials = bisect(trial_of)
    # Described last: building starts threads, and a process with threads must not fork.
    end_with(
        json.dumps({"truth": largest, "trials": [asdict(trial) for trial in trials], "sizes": describe(workload_class)})
    )


if __name__ == "__main__":
    main()
