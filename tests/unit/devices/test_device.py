from pathlib import Path

import psutil
import pytest

from brim.devices import cpu, device, nvml, resolve, resolve_ranks
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


def test_every_rank_has_the_limit_of_its_own_gpu_and_the_fullest_gpu_stands_for_all(monkeypatch):
    gpus = [nvml.Gpu(name="A10", total_bytes=24 * GIB, free_bytes=free * GIB) for free in (20, 12)]
    monkeypatch.setattr(device.nvml, "visible_gpus", lambda: gpus)
    fullest, limits_bytes = resolve_ranks("auto", memory=None, fill=0.5, num_ranks=2)
    assert (fullest.name, limits_bytes) == ("cuda:1", (10 * GIB, 6 * GIB))
    with pytest.raises(DeviceError, match="3 ranks need 3 CUDA devices, and NVML sees 2"):
        resolve_ranks("cuda", memory=None, fill=0.5, num_ranks=3)


def test_ranks_on_the_cpu_share_what_is_free():
    alone, _ = resolve_ranks("cpu", memory=None, fill=1, num_ranks=1)
    shared, limits_bytes = resolve_ranks("cpu", memory=None, fill=1, num_ranks=4)
    assert shared.memory_bytes <= 0.5 * alone.memory_bytes
    assert limits_bytes == (shared.limit_bytes,) * 4


@pytest.mark.parametrize(
    ("setting", "chosen"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        ("1,9,0", [1]),
        ("GPU-b", [1]),
        ("GPU-", []),
        ("1,0,GPU-b", []),
        ("-1", []),
    ],
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


def test_equal_processes_differ_less_where_tensors_have_mappings_of_their_own(monkeypatch):
    found = resolve("cpu", memory="1GiB", fill=0.9)
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    on_the_heap = found.noise
    assert not found.has_equal_processes
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(128 * 2**10))
    assert found.noise < on_the_heap / 10
    assert found.has_equal_processes
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(64 * 2**20))
    assert found.noise == on_the_heap
