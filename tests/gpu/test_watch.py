"""`brim watch` and the view of NVML, beside a job that holds memory of a GPU."""

import json
import os
import sys

import pynvml
import pytest
import torch
from tests.conftest import WORKLOADS

from brim.devices import nvml
from brim.watching.samples import GpuSampler

pytestmark = pytest.mark.gpu

JOB = str(WORKLOADS.parent / "scripts" / "on_last_gpu.py")
MIB = 2**20


def test_every_gpu_is_seen_with_its_memory_and_who_holds_it(brim_cli):
    kept = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda:0")
    run = brim_cli("watch", "--count", "1", "--json")
    *gpus, host = json.loads(run.stdout)["devices"]
    assert host["name"] == "cpu"
    assert [gpu["name"] for gpu in gpus] == [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    assert gpus[0]["title"] == torch.cuda.get_device_name(0)
    assert gpus[0]["used_bytes"] >= kept.nbytes
    (own,) = [process for process in gpus[0]["processes"] if process["pid"] == os.getpid()]
    assert kept.nbytes <= own["used_bytes"] <= gpus[0]["used_bytes"]
    assert own["command"].startswith("python")
    assert "cuda:0" in brim_cli("watch", "--count", "1").stdout


def test_what_the_driver_says_is_what_torch_says():
    free_bytes, total_bytes = torch.cuda.mem_get_info(0)
    gpu = nvml.visible_gpus()[0]
    assert gpu.name == torch.cuda.get_device_name(0)
    assert gpu.total_bytes == pytest.approx(total_bytes, rel=0.05), "NVML may count what the driver keeps"
    assert gpu.free_bytes == pytest.approx(free_bytes, abs=0.05 * total_bytes)
    assert gpu.held_bytes >= torch.cuda.memory_reserved(0)
    pynvml.nvmlInit()
    sampler = GpuSampler(pynvml)
    sample = sampler.sample()[0]
    assert not sample.is_gone
    assert 0 <= sample.utilization <= 1
    sampler.close()


def test_a_job_on_any_gpu_is_judged_by_what_its_allocator_counted(brim_cli):
    run = brim_cli("watch", "--interval", "50ms", "--json", "--", sys.executable, JOB, "oom")
    assert run.returncode == 1
    *samples, verdict = map(json.loads, run.stdout.splitlines())
    last = f"cuda:{torch.cuda.device_count() - 1}"
    assert max(sample["job"]["gpu_bytes"] or 0 for sample in samples) >= 512 * MIB
    assert max(sample["job"]["num_steps"] for sample in samples) > 0
    seen = [device for sample in samples for device in sample["devices"] if device["name"] == last]
    assert any(device["used_bytes"] >= 512 * MIB for device in seen)
    checks = {check["name"]: check for check in verdict["checks"]}
    assert checks["no out-of-memory"]["mark"] == "fail"
    assert checks["no out-of-memory"]["text"] == "1 counted by torch's allocator"
    assert checks["no allocator retries"]["mark"] == "fail"
    assert "OutOfMemoryError" in run.stderr
