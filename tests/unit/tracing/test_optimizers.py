"""What torch's optimizers keep and take on CUDA, as multiples of the parameters' bytes."""

import pytest
import torch
from torch import nn

import brim
from brim.cases import Case
from brim.tracing import trace

WIDTH = 512


class Optimized(brim.Workload):
    def build(self):
        self.model = nn.Linear(WIDTH, WIDTH).to(self.device)
        settings = dict.fromkeys(self.case["settings"].split(), True)
        self.optimizer = getattr(torch.optim, self.case["name"])(self.model.parameters(), lr=1e-3, **settings)

    def batch(self, size):
        return torch.zeros(size, WIDTH, device=self.device)

    def step(self, batch):
        self.model(batch).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


@pytest.mark.parametrize(
    ("name", "settings", "state"),
    [
        ("SGD", "", 0),
        ("Adam", "", 2),
        ("Adam", "capturable", 2),
        ("Adam", "fused", 2),
        ("AdamW", "amsgrad", 3),
        ("Adagrad", "", 1),
        ("Adadelta", "", 2),
        ("Adamax", "", 2),
        ("NAdam", "", 2),
        ("RAdam", "", 2),
        ("RMSprop", "centered", 2),
        ("ASGD", "", 1),
        ("Rprop", "", 2),
        ("Adafactor", "", 0),
    ],
)
def test_an_optimizer_keeps_so_many_times_the_parameters(name, settings, state):
    traced = trace(Optimized, Case({"name": name, "settings": settings}), 4, capability=(8, 6))
    held = traced.record.breakdown()
    assert held["parameters"] == 4 * (WIDTH * WIDTH + WIDTH)
    assert round(held["optimizer"] / held["parameters"], 1) == state


def test_steps_are_counted_on_the_host_unless_the_optimizer_keeps_them_on_the_gpu():
    def kept(settings):
        record = trace(Optimized, Case({"name": "AdamW", "settings": settings}), 4, capability=(8, 6)).record
        return [each.num_bytes for each in record.storages if each.kind == "optimizer" and each.num_bytes == 4]

    assert kept("") == []
    assert kept("fused") == [4, 4]
