"""Trials of a sweep on GPUs: each has its own, and looks there for the batch that fits."""

import os

import pytest
import torch
import yaml
from tests.conftest import WORKLOADS
from tests.workloads.on_gpu import number_of

import brim

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def test_every_trial_sees_the_gpu_that_it_was_given_and_finds_its_batch_there(tmp_path):
    auto = {"workload": "on_gpu.py:Evaluate", "memory": "1GiB", "cap": 2, "steps": 1}
    document = {
        "function": "on_gpu.py:report_gpu",
        "workdir": str(WORKLOADS),
        "base": {"seed": 0, "hp": {"batch_size": 1}},
        "sweep": {"product": {"seed": [0, 1], "hp.batch_size": {"auto": auto}}},
    }
    path = tmp_path / "grid.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    results = brim.sweep(path, jobs=min(2, os.cpu_count() or 1))
    assert [trial.status for trial in results] == ["done", "done"], [trial.detail for trial in results]
    assert [trial.effective for trial in results] == [{"hp.batch_size": 2}] * 2
    assert {trial.metrics["num_gpus"] for trial in results} == {1}
    seen = {trial.metrics["gpu"] for trial in results}
    assert seen <= {number_of(index) for index in range(torch.cuda.device_count())}
    # The second starts once the first has found the batch for both, and then runs beside it or after it.
    assert all("GPU" in trial.where for trial in results)
