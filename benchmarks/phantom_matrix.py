"""One driver for many torches: small jobs on phantoms with the oldest torch that brim promises, the newest and others.

    python benchmarks/phantom_matrix.py run FOLDER ...     # writes results/phantom-matrix.json
    python benchmarks/phantom_matrix.py triton FOLDER      # prints what the torch in it asks for, for pip

`make test-matrix` installs the torches and runs this. It fails where a job fails.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import brim
from brim.devices.catalog import find_gpu
from brim.phantom import Phantoms, Torch, read_torch
from brim.phantom.account import Usage

HERE = Path(__file__).parent
RESULT = HERE / "results" / "phantom-matrix.json"
JOBS = HERE / "phantom_matrix_jobs.py"
SCRIPT = HERE.parent / "examples" / "train_gpt.py"
GPU = "rtx-3090"
TIMEOUT_SECONDS = 300
LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
# fmt: off
SHARED = [
    "properties", "train-float32", "train-bfloat16", "train-float16", "linear-algebra", "operators", "sampling",
    "convolutions", "recurrent", "attention-flash", "attention-efficient", "attention-math", "checkpointing",
    "optimizers", "loader", "streams", "graphs", "out-of-memory", "snapshot", "profiler",
]
# fmt: on
# Of a job: what failed or None, and the peaks that torch counted.
Told = dict[str, object]
CHOOSE = "PYTORCH_CUDA_ALLOC_CONF"
# How what the driver says of a function that it does not have begins.
_MISSING = ("the job calls", "the job asks", "the job gives")


@dataclass(frozen=True, kw_only=True)
class Group:
    """Jobs of one process, or of two that torchrun starts.

    Attributes:
        label: Put after the names of its jobs.
        since: The oldest torch that has what they use.
        counts: Whether torch's allocator is the one that brim hears of.
        gpu: The card.
    """

    jobs: Sequence[str]
    label: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    launch: Sequence[str] = ()
    since: tuple[int, int] = (0, 0)
    counts: bool = True
    gpu: str = GPU


@dataclass(kw_only=True)
class Ran:
    """What came of a group: of each job, what the driver counted otherwise than torch, what it does not have."""

    jobs: dict[str, Told] = field(default_factory=dict)
    miscounted: list[str] = field(default_factory=list)
    absent: set[str] = field(default_factory=set)


GROUPS = (
    Group(jobs=SHARED),
    Group(jobs=["allocator"], label=" (expandable segments)", environment={CHOOSE: "expandable_segments:True"}),
    Group(
        jobs=["allocator"], label=" (cudaMallocAsync)", environment={CHOOSE: "backend:cudaMallocAsync"}, counts=False
    ),
    Group(jobs=["attention-chosen"], label=" (T4)", gpu="t4"),
    Group(jobs=["attention-chosen"], label=" (H100)", gpu="h100-sxm"),
    Group(jobs=["compiled"]),
    Group(jobs=["ddp"], launch=LAUNCH),
    Group(jobs=["fsdp2"], launch=LAUNCH, since=(2, 6)),
)


def main(words: Sequence[str]) -> int:
    """Run what is asked for."""
    if words[0] == "triton":
        print(_triton(Path(words[1])))
        return 0
    columns = [_run_all(Path(folder)) for folder in words[1:]]
    print(_table(columns))
    return int(any(each["failed"] for column in columns for each in column["jobs"].values()))


def _keep(column: Mapping[str, Any]) -> None:
    """Put what a torch did among the results, in place of what it did before."""
    kept = json.loads(RESULT.read_text())["torches"] if RESULT.exists() else []
    columns = [*(each for each in kept if each["torch"] != column["torch"]), column]
    columns.sort(key=lambda each: [int(part) for part in str(each["torch"]).partition("+")[0].split(".")])
    result = {"gpu": GPU, "python": sys.version.split()[0], "torches": columns}
    RESULT.write_text(json.dumps(result, indent=2) + "\n")


def _triton(folder: Path) -> str:
    (torch,) = importlib.metadata.distributions(name="torch", path=[str(folder)])
    (wanted,) = (line for line in torch.requires or () if line.startswith("triton"))
    return re.sub(r"[ ()]", "", wanted.partition(";")[0])


def _run_all(folder: Path) -> dict[str, Any]:
    torch = read_torch(folder / "torch")
    began = time.monotonic()
    jobs: dict[str, Told] = {}
    ran = [_run_group(group, torch) for group in GROUPS if _release(torch) >= group.since]
    for each in ran:
        jobs |= each.jobs
    jobs["brim predict"] = _predict(torch)
    jobs["counted as torch does"] = {"failed": "; ".join(wrong for each in ran for wrong in each.miscounted) or None}
    jobs["no function missing"] = {"failed": "; ".join(sorted({text for each in ran for text in each.absent})) or None}
    for name, told in jobs.items():
        if told["failed"]:
            print(f"torch {torch.version}: {name}: {told['failed']}", file=sys.stderr, flush=True)
    cuda = ".".join(map(str, torch.cuda or ()))
    column = {"torch": torch.version, "cuda": cuda, "seconds": round(time.monotonic() - began), "jobs": jobs}
    _keep(column)
    return column


def _release(torch: Torch) -> tuple[int, ...]:
    return tuple(int(part) for part in torch.version.split(".")[:2])


def _environment(torch: Torch) -> dict[str, str]:
    path = [str(torch.folder.parent), str(Path(brim.__file__).parents[1])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*path, *filter(None, [os.environ.get("PYTHONPATH")])])}


def _run_group(group: Group, torch: Torch) -> Ran:
    """Run the jobs in one process; what comes after one that ends it runs in the next."""
    ran, left = Ran(), list(group.jobs)
    while left:
        with Phantoms([find_gpu(group.gpu)] * (2 if group.launch else 1), torch=torch) as phantoms:
            environment = phantoms.environment({**_environment(torch), **group.environment})
            lines, died = _start([sys.executable, *group.launch, str(JOBS), *left], environment)
            usages = phantoms.account.usages()
            ran.absent.update(event.text for event in phantoms.events() if event.text.startswith(_MISSING))
        ended = {str(line.pop("job")): line for line in lines if "job" in line}
        left = [name for name in left if name not in ended]
        ran.jobs |= {name + group.label: told for name, told in ended.items()}
        if left:
            ran.jobs[left.pop(0) + group.label] = {"failed": died or "it ended without a word"}
        elif group.counts:
            ran.miscounted += _compare(list(ended.values()), usages)
    return ran


def _start(words: list[str], environment: dict[str, str]) -> tuple[list[Told], str]:
    """Run a process; return what its jobs said, and why it ended early."""
    try:
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return [], f"no end within {TIMEOUT_SECONDS} s"
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    said = [line for line in done.stderr.splitlines() if line.strip()]
    return lines, f"exit code {done.returncode}: {said[-1] if said else ''}" if done.returncode else ""


def _compare(jobs: Sequence[Told], usages: Sequence[Usage]) -> Iterator[str]:
    """Hold the driver's account of torch's allocator against torch's own counters; yield what differs."""
    for name, ours in (
        ("allocated_bytes", max((usage.allocated_peak_bytes for usage in usages), default=0)),
        ("reserved_bytes", max((usage.reserved_peak_bytes for usage in usages), default=0)),
    ):
        theirs = max(int(str(job.get(name, 0))) for job in jobs)
        if ours != theirs or not ours:
            yield f"{name} by the driver are {ours}, by torch {theirs}"


def _predict(torch: Torch) -> Told:
    """Predict a script as a user does, with what held its memory."""
    words = ["-m", "brim", "predict", "--gpu", GPU, "--microbatch", "8", "--engine", "phantom", "--json"]
    command = [sys.executable, *words, "--", sys.executable, str(SCRIPT), "--batch_size", "{batch}"]
    done = subprocess.run(
        command, env=_environment(torch), capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    if done.returncode:
        return {"failed": f"exit code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"}
    (peak,) = json.loads(done.stdout)["peaks"]
    parts = peak["breakdown"]
    if sum(parts.values()) != peak["allocated_bytes"] or not parts.get("parameters") or not parts.get("optimizer"):
        return {"failed": f"what held memory is {parts}, of {peak['allocated_bytes']} bytes"}
    return {"failed": None, "allocated_bytes": peak["allocated_bytes"], "reserved_bytes": peak["reserved_bytes"]}


def _table(columns: Sequence[Mapping[str, Any]]) -> str:
    rows = [["", *(f"{column['torch']}" for column in columns)]]
    names = dict.fromkeys(name for column in columns for name in column["jobs"])
    for name in names:
        told = [column["jobs"].get(name) for column in columns]
        rows.append([name, *("-" if each is None else "FAILS" if each["failed"] else "ok" for each in told)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
