"""What goes wrong with a job on phantoms: each ends in a sentence that says what to do, and leaves nothing running."""

import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import psutil
import pytest
from tests.phantoms import CUDA, with_cuda_torch

pytestmark = pytest.mark.slow
LINEAR = "import sys, torch\nmodel = torch.nn.Linear(8, 8).cuda()\n"
STEPS = "for _ in range(9): model(torch.ones(int(sys.argv[1]), 8).cuda()).sum().backward()\n"


@pytest.fixture
def predict(brim_cli, tmp_path):
    """Run `brim predict --microbatch 4` on a script with these lines."""

    def run(source, *options):
        script = tmp_path / "job.py"
        script.write_text(source)
        words = ("--gpu", "t4", "--microbatch", "4", *options, "--", sys.executable, str(script), "{batch}")
        return brim_cli("predict", *words, env=with_cuda_torch())

    return run


def test_a_second_gpu_on_a_machine_with_one_is_an_error_that_says_how_to_get_two(predict):
    run = predict(LINEAR + STEPS.replace(".cuda()", ".to('cuda:1')"))
    assert run.returncode == 1
    assert "--gpu t4:2" in run.stderr


def test_two_gpus_are_there_where_two_were_asked_for(brim_cli, tmp_path):
    script = tmp_path / "job.py"
    script.write_text(
        LINEAR + "other = torch.nn.Linear(8, 8).to('cuda:1')\n"
        "for _ in range(9):\n"
        "    other(model(torch.ones(int(sys.argv[1]), 8).cuda()).to('cuda:1')).sum().backward()\n"
    )
    words = ("--gpu", "t4:2", "--microbatch", "4", "--", sys.executable, str(script), "{batch}")
    run = brim_cli("predict", *words, env=with_cuda_torch())
    assert run.returncode == 0, run.stderr
    assert "fits" in run.stdout


def test_memory_of_the_host_that_runs_out_is_not_taken_for_the_gpu_s(predict):
    run = predict(LINEAR + "bytearray(1 << 60)\n" + STEPS)
    assert run.returncode == 1
    assert "memory ran out on this machine, not on the GPU" in run.stderr


def test_a_crash_inside_of_the_job_is_told_by_its_signal(predict):
    run = predict(LINEAR + "import ctypes\nctypes.string_at(8)\n")
    assert run.returncode == 1
    assert "SIGSEGV" in run.stderr


PRIVATE = """
#include <dlfcn.h>
int probe(void) {
  int (*ask)(const void **, const void *) = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetExportTable");
  const void *table = 0;
  return ask(&table, "0123456789abcdef");
}
"""


def test_a_library_that_works_with_the_real_driver_alone_is_named(predict, tmp_path):
    source, library = tmp_path / "private.c", tmp_path / "libprivate.so"
    source.write_text(PRIVATE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    run = predict(
        LINEAR + f"import ctypes\nif ctypes.CDLL({str(library)!r}).probe(): raise RuntimeError('no driver')\n" + STEPS
    )
    assert run.returncode == 1
    assert "libprivate.so carries a CUDA runtime of its own" in run.stderr
    assert "real GPU" in run.stderr


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_nothing_is_left_of_a_prediction_that_was_ended(still_running, tmp_path, how, code):
    script, mark = tmp_path / "job.py", tmp_path / "mark"
    os.mkfifo(mark)
    script.write_text(LINEAR + f"open({str(mark)!r}, 'w').close()\nimport threading\nthreading.Event().wait()\n")
    words = ["predict", "--gpu", "t4", "--microbatch", "4", "--", sys.executable, str(script), "{batch}"]
    started = subprocess.Popen(
        [sys.executable, "-m", "brim", *words], env=with_cuda_torch(), stderr=subprocess.PIPE, text=True
    )
    mark.open().close()  # waits for the job
    children = psutil.Process(started.pid).children(recursive=True)
    started.send_signal(how)
    errors = started.communicate(timeout=60)[1]
    assert started.returncode == code
    assert how is signal.SIGKILL or "Interrupted" in errors
    gone, alive = psutil.wait_procs(children, timeout=30)
    assert gone
    assert not alive
    assert not still_running()


# What torch needs of other packages, all in Python.
NEEDED = ("typing_extensions.py", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "fsspec", "filelock")


def test_a_script_runs_in_an_environment_of_its_own_without_brim(brim_cli, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "other")], check=True)
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in NEEDED:
        (packages / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    for each in CUDA.iterdir():
        (packages / each.name).symlink_to(each)
    script = tmp_path / "job.py"
    script.write_text(LINEAR + STEPS)
    words = (
        "--gpu",
        "t4",
        "--microbatch",
        "4",
        "--",
        str(tmp_path / "other" / "bin" / "python"),
        str(script),
        "{batch}",
    )
    run = brim_cli("predict", *words, env={**os.environ, "PYTHONPATH": str(packages)})
    assert run.returncode == 0, run.stderr
    assert "fits" in run.stdout
