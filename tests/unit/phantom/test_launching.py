import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.phantoms import CUDA, run_on_phantom

from brim.devices.catalog import Gpu, find_gpu
from brim.errors import InputError
from brim.phantom import Phantoms, read_torch, why_unavailable
from brim.phantom.build import NotBuiltError, build

GIB = 2**30
CONTEXT_BYTES = 400 * 2**20


def test_torch_sees_the_card_that_was_asked_for():
    done = run_on_phantom(
        "import torch\n"
        "p = torch.cuda.get_device_properties(0)\n"
        "print(torch.cuda.device_count(), p.name, p.total_memory, p.major, p.minor, p.multi_processor_count)\n"
        "print(torch.cuda.is_bf16_supported(), torch.backends.cudnn.version(), torch.cuda.get_device_name(1))\n",
        gpus=("rtx-3090", "h100-sxm"),
    )
    card = find_gpu("rtx-3090")
    assert done.output.splitlines() == [
        f"2 NVIDIA GeForce RTX 3090 {card.memory_bytes} 8 6 82",
        "True 92000 NVIDIA H100 SXM 80GB",
    ], done.errors


def test_a_card_that_torch_has_no_kernels_for_is_told():
    use = "import torch\ntorch.ones(1, device='cuda')"
    told = [
        [e.text for e in run_on_phantom(use, gpus=(gpu,)).events if e.kind == "kernels"] for gpu in ("t4", "v100-32gb")
    ]
    assert told[0] == []
    assert len(told[1]) == 1
    assert "no kernels for" in told[1][0]
    assert "compute capability 7.0, it has sm_75" in told[1][0]


def test_memory_is_counted_against_the_card_by_torch_s_own_allocator():
    done = run_on_phantom(
        "import torch\n"
        "cpu = [torch.profiler.ProfilerActivity.CPU]\n"
        "with torch.profiler.profile(activities=cpu, profile_memory=True) as profile:\n"
        "    x = torch.empty(3 * 2**30, dtype=torch.uint8, device='cuda')\n"
        "print(sum(event.self_device_memory_usage for event in profile.key_averages()))\n"
        "print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())\n"
        "free, total = torch.cuda.mem_get_info()\n"
        "print(total - free)\n"
        "try:\n"
        "    torch.empty(30 * 2**30, dtype=torch.uint8, device='cuda')\n"
        "except torch.cuda.OutOfMemoryError as error:\n"
        "    print(error)\n",
        context=CONTEXT_BYTES,
    )
    profiled, held, used, error = done.output.splitlines()
    assert profiled == str(3 * GIB), "torch's own profiler hears of it too"
    assert held == f"{3 * GIB} {3 * GIB}"
    assert used == str(3 * GIB + CONTEXT_BYTES)
    assert "Tried to allocate 30.00 GiB" in error
    (usage,) = done.usages
    assert usage.peak_bytes == 3 * GIB + CONTEXT_BYTES
    assert usage.refused_bytes == 30 * GIB
    assert not usage.is_running


def test_what_the_host_wrote_reads_back_and_what_kernels_would_make_reads_as_zeros():
    done = run_on_phantom(
        "import torch\n"
        "given = torch.arange(1000.)\n"
        "there = given.cuda()\n"
        "print(torch.equal(there.cpu(), given), (there * 2).sum().item(), there[5].item())\n"
        "del there\n"
        "print(torch.empty(1000, device='cuda').cpu().abs().max().item())\n"
    )
    assert done.output.splitlines() == ["True 0.0 5.0", "0.0"], done.errors


def test_two_processes_share_the_memory_of_one_card():
    done = run_on_phantom(
        "import subprocess, sys, torch\n"
        "x = torch.empty(20 * 2**30, dtype=torch.uint8, device='cuda')\n"
        "code = \"import torch; torch.empty(6 * 2**30, dtype=torch.uint8, device='cuda')\"\n"
        "child = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)\n"
        "print(child.returncode, 'OutOfMemoryError' in child.stderr)\n"
        "del x; torch.cuda.empty_cache()\n"
        "print(subprocess.run([sys.executable, '-c', code]).returncode)\n"
    )
    assert done.output.splitlines() == ["1 True", "0"], done.errors


def test_a_call_that_phantoms_do_not_have_is_an_error_with_its_name_and_what_to_do():
    done = run_on_phantom("import torch\ntorch.fft.fft(torch.ones(8, device='cuda'))")
    assert done.exit_code == 1
    assert "brim: the job calls cufft" in done.errors
    assert "--engine trace" in done.errors
    assert "RuntimeError: cuFFT error" in done.errors
    assert [event.kind for event in done.events] == ["absent"]


def test_a_forked_child_cannot_use_a_phantom_that_its_parent_used():
    done = run_on_phantom(
        "import os, torch\n"
        "torch.ones(1, device='cuda')\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try:\n"
        "        torch.ones(1, device='cuda')\n"
        "    except RuntimeError as error:\n"
        "        print(str(error).splitlines()[0], flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    assert "Cannot re-initialize CUDA in forked subprocess" in done.output


def test_expandable_segments_map_and_unmap_memory():
    done = run_on_phantom(
        "import torch\n"
        "x = torch.empty(5 * 2**30, dtype=torch.uint8, device='cuda')\n"
        "print(torch.cuda.memory_reserved() // 2**20)\n"
        "del x; torch.cuda.empty_cache()\n"
        "print(torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0])\n",
        context=0,
        environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    )
    assert done.output.splitlines() == ["5120", "0 0"], done.errors


def test_a_gpu_of_another_maker_is_no_phantom():
    with pytest.raises(InputError, match="ROCm"):
        Phantoms([find_gpu("mi300x")], torch=read_torch(CUDA / "torch"))


def test_a_torch_without_cuda_is_told_with_how_to_get_the_other():
    with pytest.raises(InputError, match=r"built without CUDA.*--engine trace.*pip install torch"):
        Phantoms([Gpu(name="small", memory_bytes=GIB)])


def test_two_jobs_have_machines_of_their_own():
    code = (
        "import torch\n"
        "x = torch.empty(20 * 2**30, dtype=torch.uint8, device='cuda')\n"
        "print(torch.cuda.mem_get_info()[0])"
    )
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(run_on_phantom, [code, code])
    assert first.output == second.output, first.errors + second.errors
    assert int(first.output) < 4 * GIB


def test_no_phantom_runs_but_on_linux(monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    assert why_unavailable() == "Phantom GPUs run on Linux, and this is darwin. Use --engine trace."


def test_without_a_compiler_brim_installs_and_a_phantom_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", str(tmp_path / "no-compiler"))
    with pytest.raises(NotBuiltError, match="no-compiler' cannot be started"):
        build(tmp_path / "lib")
    monkeypatch.setattr("brim.phantom.stand_ins.BUILT", tmp_path / "lib")
    with pytest.raises(InputError, match=r"installed without its phantom GPU.*Install a C compiler"):
        Phantoms([find_gpu("t4")], torch=read_torch(CUDA / "torch"))


def test_the_folder_of_a_job_whose_brim_was_killed_is_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    abandoned, recent = (tmp_path / f"brim-phantom-{ended.pid}-{name}" for name in ("abandoned", "recent"))
    for folder in (abandoned, recent):
        folder.mkdir()
    os.utime(abandoned, (0, 0))
    with Phantoms([find_gpu("t4")], torch=read_torch(CUDA / "torch")):
        assert not abandoned.exists()
        assert recent.exists(), "its process may be in another container"
    recent.rmdir()
    assert not list(tmp_path.iterdir())


def test_a_process_sees_the_phantoms_that_cuda_visible_devices_leaves_it_and_a_monitor_sees_all():
    done = run_on_phantom(
        "import os, torch\n"
        "os.environ['CUDA_VISIBLE_DEVICES'] = '1'\n"
        "x = torch.empty(2**30, dtype=torch.uint8, device='cuda')\n"
        "import pynvml\n"
        "pynvml.nvmlInit()\n"
        "print(torch.cuda.device_count(), torch.cuda.get_device_name(0), pynvml.nvmlDeviceGetCount())\n"
        "uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(1))\n"
        "print(str(torch.cuda.get_device_properties(0).uuid) in uuid)\n",
        gpus=("rtx-3090", "h100-sxm"),
        context=CONTEXT_BYTES,
    )
    assert done.output.splitlines() == ["1 NVIDIA H100 SXM 80GB 2", "True"], done.errors
    assert [(usage.device, usage.peak_bytes) for usage in done.usages] == [(1, GIB + CONTEXT_BYTES)]
    assert done.usages[0].reserved_peak_bytes == GIB


def test_the_driver_of_a_real_gpu_on_the_machine_is_not_loaded(tmp_path):
    source = tmp_path / "real.c"
    source.write_text('#include <stdio.h>\n__attribute__((constructor)) static void load(void) { puts("loaded"); }\n')
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libcudart.so.13"):
        command = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(tmp_path / name), str(source)]
        subprocess.run(command, check=True)
    done = run_on_phantom(
        "import ctypes, torch\n"
        "for name in ('libcuda.so.1', 'libnvidia-ml.so.1'): ctypes.CDLL(name)\n"
        "print(torch.cuda.get_device_name())\n",
        environment={"LD_LIBRARY_PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "7"},
    )
    assert done.output.splitlines() == ["NVIDIA GeForce RTX 3090"], done.errors
