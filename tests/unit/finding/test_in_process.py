"""isolate=False: probes in this process that leave no trace."""

import pytest
import torch
from tests.unit.probing.test_snapshot import fingerprint
from torch import nn

import brim
from brim.errors import WorkloadError
from brim.probing.in_process import release_memory

ROW_BYTES = 1024 * 1024 * 4


def test_a_notebooks_model_is_as_it_was(monkeypatch):
    model = nn.Sequential(nn.Linear(1024, 1024), nn.BatchNorm1d(1024), nn.Dropout())
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 1024)).sum().backward()
    optimizer.step()
    model.eval()
    before = fingerprint(model, optimizer)

    class InNotebook(brim.Workload):
        def build(self):
            model.train()

        def batch(self, size):
            return torch.randn(size * 256, 1024)

        def step(self, batch):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()

    findings = brim.find(InNotebook, isolate=False, device="cpu", cap=8, cache=False)
    assert findings[0].microbatch == 8
    assert not findings[0].confirmed
    assert "isolate=True" in findings[0].note
    assert fingerprint(model, optimizer) == before


def test_a_real_oom_here_is_survived_and_the_limit_is_lifted():
    class Hungry(brim.Workload):
        kind = "eval"

        def build(self):
            self.model = nn.Identity()

        def batch(self, size):
            return torch.ones(size, 256, 4096)

        def step(self, batch):
            self.model(batch)

    release_memory()  # as every probe does first: what earlier tests freed would count as room
    in_use = brim.devices.make_meter("cpu").peaks()["peak_bytes"]
    memory = in_use + 400 * 2**20
    finding = brim.find(Hungry, isolate=False, device="cpu", memory=memory, fill=1.0, cap=4096, cache=False)[0]
    assert 50 <= finding.microbatch <= 130
    assert any(probe.verdict == "oom" for probe in finding.probes) or finding.stopped_by == "memory"
    assert "isolate=True" in finding.note, "whatever the last probe came to"
    assert torch.ones(600 * 2**18).numel() == 600 * 2**18


def test_an_error_is_raised_with_its_traceback():
    class Fails(brim.Workload):
        def build(self):
            raise KeyError("weights")

    with pytest.raises(WorkloadError, match="KeyError: 'weights'") as caught:
        brim.find(Fails, isolate=False, device="cpu", cache=False)
    assert "test_in_process.py" in caught.value.traceback
