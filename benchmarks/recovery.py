"""Measure recovery: a soak under a limit that shrinks and grows, and what being ready for an OOM costs without one.

Soak: 500 steps under a real limit of the kernel (RLIMIT_DATA) that changes every 50 steps. Microbatches only get
smaller, so whenever the limit has grown, a new Accumulator begins with whole batches again, as a restarted run does.
The same steps without a limit are the truth: every batch once, and the same losses in float64.

Overhead: windows of `step` with and without recovery take turns, on one thread, timed as CPU time of the process, so
that other work on the machine does not count. The model has BatchNorm, whose buffers are kept for every window. The
same on two ranks with DDP and gloo: there, recovery also means that ranks agree at the end of a window and only then
bring gradients together, where DDP alone does so during the last backward pass. Waiting is no CPU time, so the wall
clock is given beside it. Each share is the median over pairs of windows, with the quartiles, which tell the noise.
Ranks have a model for each kind of window, because DDP cannot be shared, and weights that lie elsewhere count as well.

    python benchmarks/recovery.py [--out FILE]
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import importlib.metadata
import json
import logging
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import brim
from brim.devices.cpu import data_bytes
from brim.probing.in_process import release_memory
from report import Target, make_console, print_targets

DEFAULT_OUT = Path(__file__).resolve().parent / "results" / "recovery.json"
NUM_STEPS = 500
STEPS_PER_LIMIT = 50
BATCH = 128
INPUTS, HIDDEN = 8, 8192
# What the process may have beyond what it holds between steps, in turn; a whole batch needs about 25 MiB.
ROOMS_BYTES = tuple(mebibytes * 2**20 for mebibytes in (96, 16, 96, 10, 96, 16, 8, 96, 12, 96))
# mallopt's M_MMAP_THRESHOLD, and a value: tensors above it are given back to the kernel as soon as they are freed, so
# that the limit counts what is in use and not what glibc keeps.
MMAP_THRESHOLD = (-3, 64 * 2**10)
# As many windows of each kind for the overhead; a window takes about 60 ms on one thread.
NUM_WINDOWS = 100
NUM_RANKS = 2
LARGEST_DIFFERENCE = 1e-10
LARGEST_OVERHEAD = 0.01


class Counted(logging.Handler):
    """Counts the lines in which brim tells of a change."""

    def __init__(self) -> None:
        super().__init__()
        self.num_lines = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count one."""
        self.num_lines += "out of memory" in record.getMessage()


def soak(*, limited: bool) -> dict[str, Any]:
    """Return the losses of all steps, the batches that were trained on, and how many sizes did not fit."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, INPUTS)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader(
        torch.randn(NUM_STEPS * BATCH, INPUTS, dtype=torch.float64),
        batch_size=BATCH,
        shuffle=True,
        generator=torch.Generator().manual_seed(1),
    )
    counted, before = Counted(), resource.getrlimit(resource.RLIMIT_DATA)
    logger = logging.getLogger("brim")
    logger.addHandler(counted)
    logger.propagate = False
    losses, sums, num_samples, acc = [], [], 0, None

    def loss_fn(x: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(model(x), x, reduction="sum")

    try:
        for step, batch in enumerate(loader):
            if step % STEPS_PER_LIMIT == 0:
                resource.setrlimit(resource.RLIMIT_DATA, before)
                room, last = (ROOMS_BYTES[(step // STEPS_PER_LIMIT - k) % len(ROOMS_BYTES)] for k in (0, 1))
                if acc is None or room > last:
                    acc = brim.Accumulator(model, optimizer, accumulation=1)
            if limited and step % STEPS_PER_LIMIT == 1:  # the optimizer's state and brim's own are there by now
                release_memory()
                resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + room, before[1]))
            assert acc.step(batch, loss_fn)
            losses.append(acc.loss)
            sums.append(batch.sum().item())
            num_samples += int(acc.items)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
        logger.removeHandler(counted)
    return {"losses": losses, "sums": sums, "num_samples": num_samples, "num_recovered": counted.num_lines}


def measure_overhead(
    *, wrap: Callable[[nn.Module], nn.Module] = lambda model: model, wait: Callable[[], object] = lambda: None
) -> dict[str, float]:
    """Return the seconds of a window without recovery, and what recovery adds to it, as a share.

    Args:
        wrap: What goes around a model.
        wait: Called before each window.
    """
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(320, 320), nn.BatchNorm1d(320), nn.ReLU()) for _ in range(8)]
    x = torch.randn(512, 320)
    seconds: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    runs = {}
    for recover in seconds:
        model = wrap(nn.Sequential(*layers, nn.Linear(320, 320)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        runs[recover] = model, brim.Accumulator(model, optimizer, accumulation=4, recover=recover)
    for turn in range(NUM_WINDOWS):
        # Who goes first changes, so that what follows the other's garbage is shared.
        for recover in (True, False) if turn % 2 else (False, True):
            model, acc = runs[recover]
            wait()
            started = time.process_time(), time.perf_counter()
            acc.step(x, lambda part, model=model: F.mse_loss(model(part), part, reduction="sum"))
            seconds[recover].append((time.process_time() - started[0], time.perf_counter() - started[1]))
    found = {"first_window_seconds": seconds[True][0][0] - seconds[False][0][0]}
    for clock, prefix in enumerate(("", "wall_")):
        pairs = zip(seconds[True][1:], seconds[False][1:], strict=True)  # the first one starts what the others use
        window_seconds = statistics.median(times[clock] for times in seconds[False])
        added = statistics.quantiles([with_it[clock] - without[clock] for with_it, without in pairs], n=4)
        low, middle, high = (quartile / window_seconds for quartile in added)
        found[f"{prefix}window_seconds"], found[f"{prefix}overhead"] = window_seconds, middle
        found[f"{prefix}overhead_low"], found[f"{prefix}overhead_high"] = low, high
    return found


def measure_ranks() -> dict[str, float]:
    """Return the same over ranks, the means of what each of them measured."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(_run_rank, args=(folder,), nprocs=NUM_RANKS, start_method="spawn")
        found = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    return {name: statistics.mean(each[name] for each in found) for name in found[0]}


def _run_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=NUM_RANKS)
    found = measure_overhead(wrap=lambda model: DistributedDataParallel(copy.deepcopy(model)), wait=dist.barrier)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def check_targets(result: dict[str, Any]) -> list[Target]:
    """Return what recovery is held to."""
    num_lost, difference = result["num_lost_samples"], result["largest_loss_difference"]
    return [
        Target(
            what="batches lost or seen twice",
            wanted="none",
            measured=f"{num_lost} samples in {result['num_steps']} steps",
            met=not num_lost and result["same_batches"],
        ),
        Target(
            what="losses beside the undisturbed run",
            wanted=f"at most {LARGEST_DIFFERENCE:.0e} apart",
            measured=f"{difference:.1e} after {result['num_recovered']} OOMs",
            met=difference <= LARGEST_DIFFERENCE and result["num_recovered"] > 0,
        ),
        Target(
            what="cost without an OOM",
            wanted=f"at most {LARGEST_OVERHEAD:.0%}",
            measured=f"{result['overhead']:.2%} of {1000 * result['window_seconds']:.0f} ms",
            met=result["overhead"] <= LARGEST_OVERHEAD,
        ),
    ]


def main() -> None:
    """Run both, print what came of it and write it down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    out = parser.parse_args().out
    torch.set_num_threads(1)
    console = make_console()
    cost, ranks = measure_overhead(), measure_ranks()
    ctypes.CDLL(None).mallopt(*MMAP_THRESHOLD)
    truth, found = soak(limited=False), soak(limited=True)
    differences = [abs(a - b) / abs(b) for a, b in zip(found["losses"], truth["losses"], strict=True)]
    result = {
        "num_steps": len(found["losses"]),
        "num_recovered": found["num_recovered"],
        "num_lost_samples": NUM_STEPS * BATCH - found["num_samples"],
        "same_batches": found["sums"] == truth["sums"],
        "largest_loss_difference": max(differences),
        **cost,
        "ranks": {"num_ranks": NUM_RANKS, **ranks},
    }
    console.print_json(data=result)
    targets = check_targets(result)
    print_targets(targets, console)
    packages = {name: importlib.metadata.version(name) for name in ("brim", "torch")}
    document = {"python": platform.python_version(), "packages": packages, **result}
    document["targets"] = [target.to_dict() for target in targets]
    out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
