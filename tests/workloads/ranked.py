"""Workloads for several ranks, and what goes wrong on one of them."""

import os
import resource
import threading

import torch
import torch.distributed as dist
from simple import WIDTH, Scale
from torch import nn

import brim


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


class Train(brim.Workload):
    wrap = "ddp"

    def build(self):
        self.model = Scale().to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def batch(self, size):
        return torch.ones(size, 128, WIDTH, device=self.device)

    def step(self, batch):
        self.model(batch).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(2048, 2048) for _ in range(4)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Whole(Train):
    """Most of its memory is weights, gradients and moments."""

    def build(self):
        self.model = Blocks().to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def batch(self, size):
        return torch.ones(size, 2048, device=self.device)


class Sharded(Whole):
    """The same, shared by the ranks."""

    wrap = "fsdp"

    def step(self, batch):
        held = sum(parameter.to_local().numel() for parameter in self.model.parameters())
        assert held < 0.6 * sum(parameter.numel() for parameter in self.model.parameters())
        super().step(batch)


class LessOnOne(Train):
    def build(self):
        if rank() == 1:
            hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
            soft = resource.getrlimit(resource.RLIMIT_DATA)[0]
            resource.setrlimit(resource.RLIMIT_DATA, (soft - 128 * 2**20, hard))
        super().build()


class ForwardFails(Train):
    def step(self, batch):
        if rank() == 1 and len(batch) > 3:
            torch.ones(2**31)
        super().step(batch)


class BackwardFails(Train):
    def build(self):
        super().build()
        if rank() == 0:
            self.model.weight.register_hook(self.fail)

    def fail(self, gradient):
        return gradient + torch.ones(2**31).sum() if self.num_samples > 3 else gradient

    def step(self, batch):
        self.num_samples = len(batch)
        super().step(batch)


class Killed(Train):
    def step(self, batch):
        super().step(batch)
        if rank() == 1:
            os.kill(os.getpid(), 9)


class Hangs(Train):
    """Rank 1 never has a batch, and rank 0 waits for its gradients."""

    def batch(self, size):
        if rank() == 1:
            threading.Event().wait()
        return super().batch(size)


class Raises(Train):
    def step(self, batch):
        if rank() == 1:
            raise ZeroDivisionError("only here")
        super().step(batch)
