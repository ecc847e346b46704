"""What test_recovery_ranks.py runs under torchrun: windows in which one rank runs out of memory.

torchrun --standalone --nproc-per-node=2 recovering.py FOLDER
"""

from __future__ import annotations

import resource
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from overdraw import Overdraw
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import brim
from brim.devices.cpu import data_bytes
from brim.training import averaging

NUM_WINDOWS = 4
NUM_SAMPLES = 8
# Wide enough that samples, not the interpreter, are what fills the limit of the test with a real one; and such that
# every size either misses the room by far or leaves some of it, because gloo's own threads live under the same limit.
WIDTH = 2**17
ROOM_BYTES = 48 * 2**20


class Net(nn.Module):
    """A small model in which a rank runs out of memory from a certain window on."""

    def __init__(self, *, is_random: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(3, 6)
        self.norm = nn.BatchNorm1d(6) if is_random else nn.Identity()
        self.drop = nn.Dropout(0.3 if is_random else 0.0)
        self.budget = Overdraw()
        self.last = nn.Linear(6, 4)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(self.budget(self.norm(self.first(x)).tanh())))


def make_batch(num_samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_samples, 3, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 4, (num_samples,), generator=generator)


def batch_of(window: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ranks have batches of different sizes."""
    return make_batch(NUM_SAMPLES + rank, seed=10 * window + rank)


def run_windows(
    *, rank: int | None, place: str = "forward", limit: int = 3, from_window: int = 1, is_random: bool = False
) -> dict[str, object]:
    """Train, with one rank out of memory from a window on; None for no rank at all."""
    net = Net(is_random=is_random)
    model = DistributedDataParallel(net)
    torch.manual_seed(100 + dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients: list[torch.Tensor] = []
    optimizer.register_step_pre_hook(
        lambda *_: gradients.append(torch.cat([p.grad.reshape(-1) for p in net.parameters()]))
    )
    acc = brim.Accumulator(model, optimizer, accumulation=2)

    def loss_fn(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")

    for window in range(NUM_WINDOWS):
        if window == from_window and rank == dist.get_rank():
            net.budget.limit, net.budget.place = limit, place
        if window == from_window and rank is None and is_random:
            acc = brim.Accumulator(model, optimizer, accumulation=4)  # what the other run goes down to
        batch = batch_of(window, dist.get_rank())
        # BatchNorm cannot train on one sample, which an uneven batch would come to.
        acc.step(tuple(part[:NUM_SAMPLES] for part in batch) if is_random else batch, loss_fn)
    return {
        "gradients": gradients,
        "calls": net.budget.calls,
        "advice": acc.advice,
        "weights": {name: value.clone() for name, value in net.state_dict().items()},
        "random": torch.get_rng_state(),
    }


def run_under_a_limit() -> dict[str, object]:
    """Rank 1 gets a real limit of the kernel, which its samples do not fit under at once."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Tanh(), nn.Tanh()))
    acc = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=1)
    sizes: list[int] = []

    def loss_fn(batch: torch.Tensor) -> torch.Tensor:
        sizes.append(len(batch))
        spread = batch[:, :1, None].expand(-1, WIDTH, 1)
        return model(spread).sum()

    before = resource.getrlimit(resource.RLIMIT_DATA)
    batch = make_batch(64, seed=dist.get_rank())[0].float()
    acc.step(batch[:1], loss_fn)  # what a first window starts and keeps is not what is measured
    sizes.clear()
    if dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + ROOM_BYTES, before[1]))
    try:
        is_updated = acc.step(batch, loss_fn)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    return {"is_updated": is_updated, "sizes": sizes, "weight": model.module[0].weight.detach().clone()}


def average_without_room() -> dict[str, object]:
    """Rank 1 runs out of memory when gradients are brought together, after both ranks have agreed on the window."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4096, 4096, bias=False))
    acc = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=1)
    before, reduce = resource.getrlimit(resource.RLIMIT_DATA), acc._sync.reduce
    rooms: list[bool] = []

    def reduce_under_a_limit(parameters: list[torch.Tensor]) -> None:
        if dist.get_rank() == 1:
            resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + ROOM_BYTES // 3, before[1]))
        try:
            rooms.append(averaging._room_for(parameters) is not None)
            reduce(parameters)
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, before)

    acc._sync.reduce = reduce_under_a_limit
    x = torch.full((1, 4096), 1.0 + dist.get_rank())
    is_updated = acc.step(x, lambda part: model(part).sum())
    return {"is_updated": is_updated, "rooms": rooms, "weight": model.module.weight.detach()[:2].clone()}


def fail_otherwise() -> str:
    """Rank 1 fails for another reason; both go on with the next window."""
    model = DistributedDataParallel(Net())
    acc = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=2)

    def loss_fn(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if dist.get_rank() == 1:
            raise KeyError("label")
        return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")

    try:
        acc.step(batch_of(0, dist.get_rank()), loss_fn)
    except (KeyError, brim.BrimError) as error:
        said = f"{type(error).__name__}: {error}"
    is_updated = acc.step(
        batch_of(1, dist.get_rank()), lambda batch: F.cross_entropy(model(batch[0]), batch[1], reduction="sum")
    )
    return f"{said} Then updated: {is_updated}."


def come_to_the_end() -> str:
    model = DistributedDataParallel(Net())
    acc = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=2)
    if dist.get_rank() == 1:
        model.module.budget.limit = 0
    try:
        acc.step(
            batch_of(0, dist.get_rank()), lambda batch: F.cross_entropy(model(batch[0]), batch[1], reduction="sum")
        )
    except brim.BrimError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def finish_early() -> list[float]:
    """Rank 0 has one batch less than rank 1, which runs out of memory in its last."""
    net = Net()
    model = DistributedDataParallel(net)
    acc = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=1, uneven=True)
    items = []
    for window in range(1 + dist.get_rank()):
        net.budget.limit = 3 if window else None
        acc.step(
            batch_of(window, dist.get_rank()), lambda batch: F.cross_entropy(model(batch[0]), batch[1], reduction="sum")
        )
        items.append(acc.items)
    acc.finish()
    return [*items, acc.items, float(acc.num_updates)]


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))  # a rank that waits in vain ends the job
    results: dict[str, object] = {"undisturbed": run_windows(rank=None)}
    for rank in (0, 1):
        for place in ("forward", "backward"):
            results[f"{place} on {rank}"] = run_windows(rank=rank, place=place)
    results["random"] = run_windows(rank=1, place="backward", limit=2, is_random=True)
    results["random undisturbed"] = run_windows(rank=None, is_random=True)
    results["limit"] = run_under_a_limit()
    results["no room"] = average_without_room()
    results["failed"] = fail_otherwise()
    results["end"] = come_to_the_end()
    results["uneven"] = finish_early()
    torch.save(results, Path(sys.argv[1]) / f"rank{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
