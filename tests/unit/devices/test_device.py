from pathlib import Path

import psutil
import pytest

from brim.devices import cpu, device, nvml, resolve
from brim.errors import DeviceError, InputError

GIB = 2**30


def test_the_cpu_may_use_what_is_free_now():
    found = resolve("cpu", memory=None, fill=0.5)
    assert 0 < found.memory_bytes <= psutil.virtual_memory().total
    assert found.limit_bytes == found.memory_bytes // 2


def test_memory_replaces_what_is_free():
    assert resolve("cpu", memory="1.5GiB", fill=0.9).limit_bytes == int(1.5 * GIB * 0.9)


@pytest.mark.parametrize("fill", [1.7, 0, -0.5, "half", True])
def test_a_fill_that_is_no_share_is_refused(fill):
    with pytest.raises(InputError, match="above 0 and at most 1"):
        resolve("cpu", memory=None, fill=fill)


@pytest.mark.parametrize("name", ["tpu", "cuda:x", "gpu", ""])
def test_an_unknown_device_is_refused(name):
    with pytest.raises(InputError, match="Use auto, cpu or cuda:N"):
        resolve(name, memory=None, fill=0.9)


def test_without_a_driver_auto_means_the_cpu(monkeypatch):
    monkeypatch.setattr(nvml, "visible_gpus", list)
    assert resolve("auto", memory="1GiB", fill=0.9).name == "cpu"
    with pytest.raises(DeviceError, match="NVML sees 0 CUDA devices"):
        resolve("cuda", memory=None, fill=0.9)


def test_a_gpu_may_use_what_is_free_and_never_more_than_it_has(monkeypatch):
    gpu = nvml.Gpu(name="RTX 3090", total_bytes=24 * GIB, free_bytes=20 * GIB)
    monkeypatch.setattr(device.nvml, "visible_gpus", lambda: [gpu])
    assert resolve("auto", memory=None, fill=1).memory_bytes == 20 * GIB
    assert resolve("cuda:0", memory="80GiB", fill=1).memory_bytes == 24 * GIB


@pytest.mark.parametrize(
    ("setting", "chosen"), [(None, [0, 1, 2]), ("", []), ("2,0", [2, 0]), ("1,9,0", [1]), ("GPU-b", [1]), ("GPU-", [])]
)
def test_visible_devices_are_read_as_cuda_reads_them(setting, chosen):
    assert nvml.choose_visible(["GPU-aa", "GPU-bb", "GPU-cc"], setting) == chosen


def test_a_containers_limit_counts(monkeypatch, tmp_path: Path):
    (tmp_path / "max").write_text(str(GIB))
    (tmp_path / "current").write_text(str(GIB // 2))
    monkeypatch.setattr(cpu, "_CGROUP_FILES", ((tmp_path / "max", tmp_path / "current"),))
    assert cpu.available_bytes() == GIB // 2
    (tmp_path / "max").write_text("max")
    assert cpu.available_bytes() > GIB


def test_the_kernels_count_of_oom_kills_is_read():
    count = cpu.num_oom_kills()
    assert count is None or count >= 0
