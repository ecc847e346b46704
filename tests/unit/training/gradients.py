"""A small model in double precision, its batches, and the gradients that its updates had."""

import torch
from torch import nn
from torch.nn import functional as F

IGNORED = -100


def make_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()


def make_batch(num_items: int, num_ignored: int = 0, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    size = num_items + num_ignored
    x = torch.randn(size, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 4, (size,), generator=generator)
    y[num_items:] = IGNORED
    return x, y


def loss_sum(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y, ignore_index=IGNORED, reduction="sum")


def record_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Keep the gradient of every update as one vector."""
    recorded = []

    def record(optimizer: torch.optim.Optimizer, *_: object) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        recorded.append(torch.cat([p.grad.detach().reshape(-1).clone() for p in parameters]))

    optimizer.register_step_pre_hook(record)
    return recorded


def train_on_full_batches(model: nn.Module, windows, *, clip_norm: float | None = None) -> list[torch.Tensor]:
    """The truth: one forward and one backward pass for each window."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = record_gradients(optimizer)
    for window in windows:
        x, y = (torch.cat(parts) for parts in zip(*window, strict=True))
        if not (y != IGNORED).any():
            continue
        optimizer.zero_grad()
        F.cross_entropy(model(x), y, ignore_index=IGNORED).backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
    return gradients
