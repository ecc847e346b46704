"""A training job that takes a few MiB a sample and hardly any arithmetic, and its relatives."""

import torch
from torch import nn

import brim

WIDTH = 4096


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return (x * self.weight).relu() + self.weight


class Train(brim.Workload):
    def build(self):
        self.model = Scale().to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def batch(self, size):
        return torch.ones(size, self.case.get("rows", 128), WIDTH, device=self.device)

    def step(self, batch):
        self.model(batch).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Normalized(Train):
    """BatchNorm refuses to train on one sample alone."""

    def build(self):
        self.model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def batch(self, size):
        return torch.ones(size, 64, device=self.device)


class Evaluate(Train):
    kind = "eval"

    @torch.no_grad()
    def step(self, batch):
        self.model(batch)


class Untraceable(Train):
    """Makes a tensor as large as a value says, which a fake one does not have."""

    def step(self, batch):
        torch.zeros(int(batch.abs().sum() * 0) + 1)
        super().step(batch)


class Huge(Train):
    """Does not fit at all under the limits of these tests."""

    def batch(self, size):
        return torch.ones(size, 300_000, WIDTH, device=self.device)


class WithTies(Train):
    """A dictionary batch, as tokenizers make."""

    def batch(self, size):
        return {"x": super().batch(size), "lengths": torch.ones(size)}

    def step(self, batch):
        super().step(batch["x"])


NotAWorkload = dict
