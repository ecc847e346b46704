"""Training and evaluation on a GPU, of which a sample takes some MiB."""

import torch
from torch import nn

import brim

WIDTH = 1024


class Train(brim.Workload):
    def build(self):
        self.model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH)).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def batch(self, size):
        return torch.ones(size, self.case.get("rows", 512), WIDTH, device=self.device)

    def step(self, batch):
        self.model(batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Evaluate(Train):
    kind = "eval"

    @torch.inference_mode()
    def step(self, batch):
        self.model(batch)


class DrawsOnGpu(Train):
    """Uses the random numbers of the device."""

    def step(self, batch):
        super().step(batch * torch.rand_like(batch))


def number_of(index):
    """Return a number that no other GPU has."""
    return int(str(torch.cuda.get_device_properties(index).uuid).replace("-", "")[-12:], 16)


def report_gpu(config):
    """Return which GPU a trial sees, and how many."""
    return {"gpu": number_of(0), "num_gpus": torch.cuda.device_count()}
