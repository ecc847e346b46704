"""Show by how much real probes on the CPU exceed the replay of a trace through the real allocator.

Each workload is traced at a few sizes with real, untouched memory behind its tensors, then run for real, each in a
process of its own that is forked from a fresh one; several fresh ones, because their heaps differ. What is left over is
what kernels and their libraries take (the constants of `brim.tracing.rehearsal`) and the accident of the heap
(`_UNMEASURED_WASTE` in `brim.tracing.curves`). The first depends on the processor, which the results name;
`MALLOC_MMAP_THRESHOLD_=131072` leaves the second out.

    python benchmarks/replay.py [--only WORKLOAD] [--processes N]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from brim.tracing.rehearsal import LARGER_SHARE, SHARE

HERE = Path(__file__).resolve().parent
OUT = HERE / "results" / "replay.json"
# The largest size of each: it fills about 768 MiB, the limit of `finders.py`, where the threshold is fixed.
WORKLOADS = {
    "gpt2.py:Gpt2": 142,
    "workloads.py:ConvNet": 680,
    "workloads.py:LongAttention": 140,
    "workloads.py:EmbeddingMlp": 2140,
    "nets.py:Pyramid": 165,
    "nets.py:ResNet": 79,
    "nets.py:UNet": 33,
    "nets.py:AutoEncoder": 3890,
    "nets.py:Mlp": 10500,
    "nets.py:Encoder": 107,
    "nets.py:Lstm": 347,
}
# Which shares of it are run: those that a search runs before its first probe, and the size of that probe.
SHARES = (SHARE, LARGER_SHARE, 1)
NUM_STEPS = 3
MEBIBYTE = 2**20
# Far above what any of them takes.
LIMIT_BYTES = 8 * 2**30


def compare(address: str, sizes: list[int]) -> list[dict[str, Any]]:
    """Trace and run every size in forks of this process, in which nothing ran yet but imports."""
    import torch._dynamo  # noqa: F401  optimizers import it, so probes begin with it

    from brim.cases import Case
    from brim.devices.cpu import baseline_in_fork
    from brim.forks import in_forks
    from brim.probing.trial import run_trial
    from brim.tracing.curves import trace_with_backing
    from brim.workload import load

    workload_class = load(address)
    baseline_bytes = baseline_in_fork()

    def run(size: int) -> dict[str, Any]:
        from brim.devices import make_meter

        meter = make_meter("cpu")
        return run_trial(workload_class, Case({}), size, steps=NUM_STEPS, meter=meter, limit_bytes=LIMIT_BYTES)

    rows = []
    for size in sizes:
        (traced,) = in_forks([partial(trace_with_backing, workload_class, Case({}), size, NUM_STEPS, LIMIT_BYTES, 0)])
        (real,) = in_forks([partial(run, size)])
        rows.append(
            {
                "workload": address,
                "microbatch": size,
                "live_bytes": traced["peak_bytes"],
                "replayed_bytes": traced["grown_bytes"] - traced["once_bytes"],
                "real_bytes": real["peak_bytes"] - baseline_bytes - traced["once_bytes"],
            }
        )
    return rows


def main() -> None:
    """Compare in several fresh processes, print a line for each size, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=WORKLOADS, metavar="WORKLOAD", help=", ".join(WORKLOADS))
    parser.add_argument("--processes", type=int, default=3, metavar="N", help="fresh processes for each workload")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.chdir(HERE)
    if options.here:
        print(json.dumps(compare(options.only, [int(share * WORKLOADS[options.only]) for share in SHARES])))
        return
    rows = []
    for address in [options.only] if options.only else WORKLOADS:
        for _ in range(options.processes):
            command = [sys.executable, __file__, "--here", "--only", address]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            for row in json.loads(done.stdout.splitlines()[-1]):
                rows.append(row)
                wasted, beyond = row["replayed_bytes"] - row["live_bytes"], row["real_bytes"] - row["replayed_bytes"]
                print(
                    f"{address} at {row['microbatch']}: {row['live_bytes'] / MEBIBYTE:.0f} MiB live, "
                    f"{wasted / MEBIBYTE:+.1f} in the replay, {beyond / MEBIBYTE:+.1f} beyond it in a real run",
                    flush=True,
                )
    if not options.only:
        threshold = os.environ.get("MALLOC_MMAP_THRESHOLD_")
        allocator = "glibc's own heap" if threshold is None else f"MALLOC_MMAP_THRESHOLD_={threshold}"
        kept = json.loads(OUT.read_text()) if OUT.exists() else {}
        OUT.write_text(json.dumps({**kept, f"{_processor()}, {allocator}": rows}, indent=1) + "\n")
        print(f"Written: {OUT.relative_to(HERE.parent)}")


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


if __name__ == "__main__":
    main()
