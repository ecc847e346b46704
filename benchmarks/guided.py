"""Count the probes and OOMs of `brim find --strategy guided` on nets that were not chosen for it (`nets.py`).

Each net is searched once with glibc's own heap and once with a fixed threshold for mappings (see `finders.py`), under
two limits. What a search should take is one probe and its confirmation, and no OOM. What was found so far is written
after every search.

    python benchmarks/guided.py [--only NET] [--allocator heap|mapped]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from pathlib import Path
from typing import Any

import footprint

HERE = Path(__file__).resolve().parent
OUT = HERE / "results" / "guided.json"
NETS = (
    *("Pyramid", "PyramidEvaluated", "ResNet", "UNet", "AutoEncoder"),
    *("Mlp", "Encoder", "Lstm", "Bert"),
)
LIMITS_BYTES = (768 * 2**20, 1280 * 2**20)
ALLOCATORS: dict[str, dict[str, str]] = {"heap": {}, "mapped": {"MALLOC_MMAP_THRESHOLD_": str(128 * 2**10)}}
# One probe and its confirmation.
ONE_PROBE = 2


def search(net: str, limit_bytes: int, allocator: str) -> dict[str, Any]:
    """Search one net and return what it took."""
    memory = footprint.memory_options(limit_bytes)
    command = [footprint.BRIM, "find", f"nets.py:{net}", "--json", "--no-cache", *memory]
    environment = {name: value for name, value in os.environ.items() if name != "MALLOC_MMAP_THRESHOLD_"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=HERE, env={**environment, **ALLOCATORS[allocator]}, check=True
    )
    finding = json.loads(done.stdout)["findings"][0]
    verdicts = [probe["verdict"] for probe in finding["probes"]]
    return {
        "net": net,
        "allocator": allocator,
        "limit_bytes": limit_bytes,
        "predicted": finding["predicted"],
        "answer": finding["microbatch"],
        "num_probes": len(verdicts),
        "num_ooms": verdicts.count("oom"),
        "probes": [[probe["microbatch"], probe["verdict"], probe["peak_bytes"]] for probe in finding["probes"]],
        "seconds": finding["seconds"],
    }


def summary(rows: list[dict[str, Any]]) -> str:
    """Say how often a search took what it should."""
    few = sum(row["num_probes"] <= ONE_PROBE for row in rows)
    without_oom = sum(row["num_ooms"] == 0 for row in rows)
    probes = statistics.mean(row["num_probes"] for row in rows)
    return (
        f"{len(rows)} searches: {without_oom} without an OOM, {few} with one probe and its confirmation, "
        f"{probes:.1f} probes in the mean, {max(row['num_probes'] for row in rows)} at most"
    )


def main() -> None:
    """Search all nets, print a line for each, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=NETS, metavar="NET", help=", ".join(NETS))
    parser.add_argument("--allocator", choices=ALLOCATORS, help="this one alone; what is kept of the other stays")
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = json.loads(OUT.read_text()) if OUT.exists() else {}
    for allocator in [options.allocator] if options.allocator else ALLOCATORS:
        rows = found[allocator] = []
        for net in [options.only] if options.only else NETS:
            for limit_bytes in LIMITS_BYTES:
                row = search(net, limit_bytes, allocator)
                rows.append(row)
                if not options.only:
                    OUT.write_text(json.dumps(found, indent=1) + "\n")
                print(
                    f"{allocator} {net} {limit_bytes // 2**20} MiB: {row['answer']}, {row['num_probes']} probes, "
                    f"{row['num_ooms']} OOMs, {row['seconds']:.0f} s",
                    flush=True,
                )
        print(f"{allocator}: {summary(rows)}", flush=True)
    if not options.only:
        print(f"Written: {OUT.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
