"""`find` on cuda:0: its limit, OOM, retries and confirmation; on a phantom and on a real card alike."""

import json
import subprocess
import sys

import pytest
import torch
from tests.conftest import WORKLOADS

import brim
from brim.devices import Device, resolve
from brim.probing.isolated import IsolatedProber
from brim.probing.scripts import Command, CommandProber

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

TRAIN = f"{WORKLOADS}/on_gpu.py:Train"
LOADED = str(WORKLOADS.parent / "scripts" / "loaded.py")
MIB, GIB = 2**20, 2**30


def test_a_workload_is_searched_to_what_its_limit_allows_and_confirmed_in_a_fresh_process():
    findings = brim.find(TRAIN, device="auto", memory=2 * GIB, fill=0.75, start=64)
    assert (findings.device_name, findings.memory_bytes, findings.fill) == ("cuda:0", 2 * GIB, 0.75)
    (finding,) = findings
    assert (finding.status, finding.stopped_by, finding.confirmed) == ("found", "memory", True)
    first, *_, last = finding.probes
    assert (first.microbatch, first.verdict) == (64, "oom")
    assert "Tried to allocate" in first.detail
    assert first.memory["num_retries"] > 0, "the allocator gave back what it had cached, and asked again"
    fitted = [probe for probe in finding.probes if probe.microbatch == finding.microbatch]
    assert [probe.verdict for probe in fitted] == ["fits", "fits"]
    assert last is fitted[-1]
    assert last.calls == {"forward": 3, "backward": 3, "optimizer": 3}
    memory = last.memory
    assert memory["allocated_bytes"] < memory["reserved_bytes"] < memory["device_bytes"] == last.peak_bytes
    assert 0.85 * 1.5 * GIB < last.peak_bytes <= 1.5 * GIB
    assert finding.predicted["largest"] == pytest.approx(finding.microbatch, rel=0.25)
    again = brim.find(TRAIN, device="cuda:0", memory=2 * GIB, fill=0.75, start=64)
    assert [(probe.microbatch, probe.verdict) for probe in again[0].probes] == [(finding.microbatch, "fits")]


def test_a_command_whose_loader_forks_is_searched_under_a_limit(brim_cli):
    run = brim_cli(
        "find", "--device", "cuda:0", "--memory", "1500MiB", "--fill", "1", "--start", "32", "--multiple-of", "8",
        "--json", "--",
        sys.executable, LOADED, "--batch_size", "{batch}",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    (finding,) = told["findings"]
    assert (told["device"]["name"], told["kind"], finding["confirmed"]) == ("cuda:0", "train", True)
    verdicts = {probe["microbatch"]: probe["verdict"] for probe in finding["probes"]}
    assert verdicts[finding["microbatch"]] == "fits"
    assert "oom" in verdicts.values()
    assert finding["peak_bytes"] <= 1500 * MIB


def test_a_forked_loader_of_a_command_does_not_touch_cuda():
    limit_bytes = 2 * GIB
    device = Device(name="cuda:0", memory_bytes=limit_bytes, fill=1.0)
    prober = CommandProber(Command((sys.executable, LOADED, "--batch_size", "{batch}")), device, (limit_bytes,))
    ended, log = prober.run(brim.Case({}), 4, steps=2)
    assert log.read_text() == ""
    assert prober.outcome(brim.Case({}), 4, ended, log).probe.verdict == "fits"


def test_a_device_that_is_not_there_is_an_error_that_counts_those_that_are(brim_cli):
    run = brim_cli("find", TRAIN, "--device", "cuda:64")
    assert run.returncode == 1
    assert f"NVML sees {torch.cuda.device_count()} CUDA device" in run.stderr


def test_the_devices_that_cuda_visible_devices_leaves_are_those_that_are_used(monkeypatch):
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert resolve("auto", memory=None, fill=1.0).name == "cpu"
    last = len(names) - 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", str(last))
    device = resolve("cuda:0", memory=2 * GIB, fill=1.0)
    assert device.model == names[last]
    prober = IsolatedProber(f"{WORKLOADS}/on_gpu.py:Evaluate", device)
    try:
        outcome = prober.probe(brim.Case({}), 2, steps=1)
        assert outcome.probe.verdict == "fits"
        assert prober._child_pid is None, "where CUDA is used nothing is forked"
    finally:
        prober.close()


def test_a_search_in_this_process_uses_all_that_others_leave_and_puts_random_numbers_back():
    code = (
        "import sys, torch, brim\n"
        f"sys.path.insert(0, {str(WORKLOADS)!r})\n"
        "import on_gpu\n"
        "torch.manual_seed(3)\n"
        "brim.find(on_gpu.DrawsOnGpu, device='cuda:0', isolate=False, memory='1500MiB', cap=2, cache=False)\n"
        "print(torch.cuda.get_rng_state().equal(torch.Generator('cuda').manual_seed(3).get_state()))\n"
        "total = torch.cuda.get_device_properties(0).total_memory\n"
        "kept = torch.empty(total // 2, dtype=torch.uint8, device='cuda')\n"
        "found = brim.find(on_gpu.Evaluate, device='cuda:0', isolate=False, cap=2, cache=False)\n"
        "print(found.memory_bytes > 0.9 * total, found[0].peak_bytes > total // 2, found[0].microbatch)\n"
        "print(torch.cuda.memory_allocated() - kept.nbytes < 64 * 2**20)\n"
        "few = brim.find(on_gpu.Evaluate, device='cuda:0', isolate=False, memory='64MiB', cache=False)[0]\n"
        "print(few.status, 'holds' in few.note, 'above the limit of 57.6 MiB' in few.note)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["True", "True True 2", "True", "nothing_fits True True"], done.stderr
