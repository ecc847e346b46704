"""Modules that a trace has imported for itself count as the workload's where that imports them too."""

import json
import subprocess
import sys
from functools import partial  # noqa: F401  used by what runs in a new process
from pathlib import Path

import torch
from torch import nn

import brim
from brim.cases import Case
from brim.forks import in_forks  # noqa: F401  used by what runs in a new process
from brim.tracing import trace
from brim.tracing.backing import Backing

ROOT = Path(__file__).parents[3]


class Plain(brim.Workload):
    kind = "eval"

    def build(self):
        self.model = nn.Linear(16, 16)

    def batch(self, size):
        return torch.ones(size, 16)

    def step(self, batch):
        self.model(batch)


class Imports(Plain):
    def build(self):
        import torch._dynamo  # noqa: F401

        super().build()


class HasOptimizer(Plain):
    """What torch keeps from being compiled asks for the compiler."""

    def build(self):
        super().build()
        self.optimizer = torch.optim.SGD(self.model.parameters())


def shared_bytes(workload_class):
    backing = Backing(shared_bytes=1000)
    trace(workload_class, Case(), 2, backing=backing)
    return backing.shared_bytes


def test_they_count_only_where_building_asks_for_them():
    calls = "[partial(shared_bytes, each) for each in (Plain, Imports, HasOptimizer)]"  # torch asks once in a process
    code = f"from tests.unit.tracing.test_shared_imports import *\nprint(json.dumps(in_forks({calls})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0, 1000, 1000]
