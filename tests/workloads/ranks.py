"""What test_ranks.py runs under torchrun: every scenario on every rank, results into a file for each rank.

torchrun --standalone --nproc-per-node=2 ranks.py FOLDER
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import brim

NUM_RANKS = 2
NUM_DRAWS = 12


class Net(nn.Module):
    """Two layers, and a head that is used only when asked for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(3, 5).double()
        self.last = nn.Linear(5, 4).double()
        self.extra = nn.Linear(5, 4).double()

    def forward(self, x: torch.Tensor, *, extra: bool = False) -> torch.Tensor:
        hidden = self.first(x).tanh()
        return self.extra(hidden) if extra else self.last(hidden)


def make_batch(num_items: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num_items, 3, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 4, (num_items,), generator=generator)


def draw(seed: int, *, uneven: bool = False) -> tuple[int, list[list[tuple[torch.Tensor, torch.Tensor]]]]:
    """Return an accumulation and the microbatches of every rank, of unequal sizes."""
    generator = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=generator))

    accumulation, length = number(1, 4), number(1, 9)
    lengths = [number(0, 9) if uneven else length for _ in range(NUM_RANKS)]
    return accumulation, [[make_batch(number(1, 6), number(0, 10**6)) for _ in range(count)] for count in lengths]


def loss_sum(model: nn.Module, x: torch.Tensor, y: torch.Tensor, **options: bool) -> torch.Tensor:
    return F.cross_entropy(model(x, **options), y, reduction="sum")


class Run:
    """A model on its ranks with an accumulator, and the gradient of every update."""

    def __init__(self, wrap: str, **settings: object) -> None:
        net = Net()
        self.gradients: list[torch.Tensor] = []
        if wrap == "ddp":
            self.model: nn.Module = DistributedDataParallel(net, find_unused_parameters=True)
        elif wrap == "fsdp":
            mesh = init_device_mesh("cpu", (NUM_RANKS,))
            for layer in (net.first, net.last, net.extra, net):
                fully_shard(layer, mesh=mesh)
            self.model = net
        else:
            self.model = net
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.optimizer.register_step_pre_hook(lambda *_: self.gradients.append(self.gradient()))
        self.acc = brim.Accumulator(self.model, self.optimizer, **settings)

    def gradient(self) -> torch.Tensor:
        """The whole gradient as one vector, zero where there is none."""
        pieces = []
        for parameter in self.model.parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.detach()
            pieces.append(gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient)
        return torch.cat([piece.reshape(-1).clone() for piece in pieces])

    def feed(self, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for x, y in batches:
            self.acc.backward(loss_sum(self.model, x, y), items=len(y))


def run_in_windows(wrap: str, *, uneven: bool = False) -> list[list[torch.Tensor]]:
    found = []
    for seed in range(NUM_DRAWS):
        accumulation, batches = draw(seed, uneven=uneven)
        group = dist.group.WORLD if wrap == "plain" else None
        run = Run(wrap, accumulation=accumulation, uneven=uneven, group=group)
        run.feed(batches[dist.get_rank()])
        run.acc.finish()
        found.append(run.gradients)
    return found


def step_whole_batches(wrap: str) -> list[torch.Tensor]:
    run = Run(wrap, accumulation=3)
    for seed in range(4):
        batch = make_batch(5 if dist.get_rank() == 0 else 3 + seed, seed=2 * seed + dist.get_rank())
        run.acc.step(batch, lambda part: loss_sum(run.model, *part))
    return run.gradients


def save_in_the_middle(wrap: str) -> list[torch.Tensor]:
    batches = draw(3)[1][dist.get_rank()]
    run = Run(wrap, accumulation=3)
    run.feed(batches[:2])
    state = run.acc.state_dict()
    run.feed(batches[:1])
    resumed = Run(wrap, accumulation=3)
    resumed.acc.load_state_dict(state)
    resumed.feed(batches[2:])
    resumed.acc.finish()
    return resumed.gradients


def lose_a_microbatch(wrap: str, *, at: int, on_nan: str) -> dict[str, object]:
    """Rank 1 has a NaN at one place of the first window; a second window follows."""
    rank = dist.get_rank()
    run = Run(wrap, accumulation=3, on_nan=on_nan)
    said = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", "Microbatch")
        for k in range(6):
            x, y = make_batch(2 + rank, seed=10 * k + rank)
            factor = float("nan") if (k, rank) == (at, 1) else 1.0
            try:
                run.acc.backward(loss_sum(run.model, x, y) * factor, items=len(y))
            except brim.BrimError as error:
                said = str(error)
    return {"gradients": run.gradients, "said": said or " ".join(str(warning.message) for warning in caught)}


def end_too_early(wrap: str) -> str:
    run = Run(wrap, accumulation=2)
    try:
        run.feed([make_batch(2, seed=k) for k in range(4 if dist.get_rank() == 0 else 3)])
        run.acc.finish()
    except brim.BrimError as error:
        return str(error)
    return "nothing"


def forget_to_wrap() -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Run("plain", accumulation=2)
    return " ".join(str(warning.message) for warning in caught)


def run_forward_out_of_turn(wrap: str) -> list[torch.Tensor]:
    run = Run(wrap, accumulation=2)
    batches = [make_batch(2 + k, seed=10 * k + dist.get_rank()) for k in range(2)]
    losses = [loss_sum(run.model, x, y) for x, y in batches]
    for loss, (_, y) in zip(losses, batches, strict=True):
        run.acc.backward(loss, items=len(y))
    return run.gradients


def use_a_head_on_one_rank_only(wrap: str) -> list[torch.Tensor]:
    run = Run(wrap, accumulation=2)
    x, y = make_batch(3, seed=dist.get_rank())
    run.acc.backward(loss_sum(run.model, x, y, extra=dist.get_rank() == 1), items=3)
    run.acc.finish()
    return run.gradients


def count_communication(wrap: str) -> list[int]:
    """How many buckets DDP has reduced after each microbatch."""
    run = Run(wrap, accumulation=3)
    buckets = []

    def count(_, bucket):  # DDP checks annotations, and does not know them as strings
        buckets.append(bucket.index())
        tensor = bucket.buffer().div_(NUM_RANKS)
        return dist.all_reduce(tensor, async_op=True).get_future().then(lambda done: done.value()[0])

    run.model.register_comm_hook(None, count)
    counted = []
    for k in range(6):
        run.feed([make_batch(2, seed=k)])
        counted.append(len(buckets))
    return counted


def overflow_on_one_rank(wrap: str) -> dict[str, object]:
    """A scaler skips the step on both ranks."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    run = Run(wrap, accumulation=2, scaler=scaler, clip_norm=0.5)
    x, y = make_batch(3, seed=dist.get_rank())
    run.model.register_forward_hook(_overflowing(only_on_rank=1))
    updated = [run.acc.backward(loss_sum(run.model, x, y), items=3) for _ in range(4)]
    return {"updated": updated, "scale": scaler.get_scale()}


def _overflowing(*, only_on_rank: int) -> Callable[..., None]:
    """Make the gradient, not the loss, infinite, in the first backward pass of one rank."""
    calls: Iterator[int] = iter(range(100))

    def overflow(_: nn.Module, __: object, output: torch.Tensor) -> None:
        if next(calls) == 0 and dist.get_rank() == only_on_rank:
            output.register_hook(lambda gradient: gradient * float("inf"))

    return overflow


def audit_a_loop(mistake: str) -> dict[str, object]:
    """A loop of three microbatches a window, of unequal sizes, over both ranks, with a tail."""
    rank = dist.get_rank()
    net = Net()
    del net.extra  # DDP would wait for its gradient
    model = DistributedDataParallel(net)
    batches = [make_batch(2 + (3 * k + rank) % 4, seed=10 * k + rank) for k in range(5)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(loader) -> None:
        drawn = list(loader)
        for window in (drawn[:3], drawn[3:]):
            here = float(sum(len(y) for _, y in window))
            everywhere = torch.tensor(here)
            dist.all_reduce(everywhere)
            for k, (x, y) in enumerate(window, 1):
                factor = {
                    "none": NUM_RANKS / everywhere,
                    "missing ranks": 1 / everywhere,
                    "mean of ranks": 1 / here,
                }[mistake]
                model.require_backward_grad_sync = k == len(window)
                (loss_sum(model, x, y) * factor).backward()
            optimizer.step()
            optimizer.zero_grad()

    report = brim.audit(train, model, batches, lambda batch: (loss_sum(model, *batch), len(batch[1])))
    return {
        "causes": [[str(cause) for cause in window.causes] for window in report.windows],
        "ratios": [window.ratio for window in report.windows],
        "items": [window.items for window in report.windows],
        "num_ranks": report.num_ranks,
    }


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))  # a rank that waits in vain ends the job
    warnings.filterwarnings("ignore", ".*parameters got no gradient")
    results = {
        f"{wrap} {name}": scenario(wrap)
        for wrap in ("ddp", "fsdp")
        for name, scenario in {
            "windows": run_in_windows,
            "batches": step_whole_batches,
            "saved": save_in_the_middle,
            "raised": lambda wrap: lose_a_microbatch(wrap, at=1, on_nan="raise"),
            "skipped": lambda wrap: lose_a_microbatch(wrap, at=1, on_nan="skip"),
            "skipped last": lambda wrap: lose_a_microbatch(wrap, at=2, on_nan="skip"),
            "overflow": overflow_on_one_rank,
        }.items()
    }
    results["ddp uneven"] = run_in_windows("ddp", uneven=True)
    results["plain windows"] = run_in_windows("plain")
    results["plain"] = forget_to_wrap()
    results["ddp too early"] = end_too_early("ddp")
    results["ddp out of turn"] = run_forward_out_of_turn("ddp")
    results["ddp one head"] = use_a_head_on_one_rank_only("ddp")
    results["ddp communication"] = count_communication("ddp")
    for mistake in ("none", "missing ranks", "mean of ranks"):
        results[f"audit {mistake}"] = audit_a_loop(mistake)
    torch.save(results, Path(sys.argv[1]) / f"rank{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
