import os

import psutil
import pytest
from tests.unit.watching.fake_nvml import GIB, FakeNvml

from brim.watching.samples import CpuSampler, GpuSampler, short_command


@pytest.fixture(autouse=True)
def all_gpus(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def check_contract(sampler):
    for device in sampler.sample():
        assert 0 <= device.used_bytes <= device.total_bytes
        assert 0 <= device.fill <= 1
        assert device.utilization is None or device.utilization >= 0
        assert device.name
        assert device.title
        held = [each.used_bytes or 0 for each in device.processes]
        assert held == sorted(held, reverse=True)
    sampler.close()


def test_the_host_is_a_device():
    sampler = CpuSampler()
    (device,) = sampler.sample()
    assert device.name == "cpu"
    assert device.total_bytes == psutil.virtual_memory().total
    assert device.processes
    check_contract(sampler)


def test_a_process_is_shown_with_its_script():
    nvml = FakeNvml(processes=[(os.getpid(), 2 * GIB)])
    (process,) = GpuSampler(nvml).sample()[0].processes
    assert process.command == short_command(psutil.Process().cmdline())
    assert " " in process.command, "a program and what it runs"
    assert short_command(["/bin/python", "-c", "import brim\n" * 100]).startswith("python -c import brim import brim")


def test_a_driver_is_asked_and_left():
    nvml = FakeNvml(processes=[(os.getpid(), 2 * GIB), (999_999_999, None), (1, 4 * GIB)])
    sampler = GpuSampler(nvml)
    first, second = sampler.sample()
    assert (first.name, first.title, first.fill, first.utilization) == ("cuda:0", "Fake RTX", 0.25, 0.73)
    assert (first.watts, first.most_watts) == (240, 350)
    assert [process.pid for process in first.processes] == [1, os.getpid(), 999_999_999]
    assert second.watts is None
    check_contract(sampler)
    assert not nvml.is_open


@pytest.mark.gpu
def test_the_real_driver_obeys_the_same_contract():
    import pynvml

    pynvml.nvmlInit()
    check_contract(GpuSampler(pynvml))


def test_a_gpu_that_disappears_keeps_its_place():
    nvml = FakeNvml()
    sampler = GpuSampler(nvml)
    nvml.lost = {0}
    gone, there = sampler.sample()
    assert gone.is_gone
    assert gone.name == "cuda:0"
    assert not there.is_gone


def test_gpus_are_numbered_as_torch_does(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    (device,) = GpuSampler(FakeNvml()).sample()
    assert (device.name, device.watts) == ("cuda:0", None)
