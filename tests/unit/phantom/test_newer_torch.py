"""A torch that asks for more than phantoms have, made of a few lines of C: it loads, and a call is told by name."""

import subprocess
import sys
from pathlib import Path

import pytest

from brim.devices.catalog import find_gpu
from brim.errors import InputError
from brim.phantom import Phantoms, read_torch
from brim.phantom.asking import read_asked
from brim.phantom.elf import read_shared_object

COMPILE = ("cc", "-shared", "-fPIC", "-x", "c", "-")


def library(path: Path, code: str, *words: str, name: str = "", versions: str = "") -> Path:
    """Compile a shared library."""
    path.parent.mkdir(parents=True, exist_ok=True)
    script = path.with_suffix(".map")
    script.write_text(versions)
    more = [f"-Wl,-soname,{name or path.name}", *([f"-Wl,--version-script={script}"] if versions else [])]
    subprocess.run([*COMPILE, "-o", str(path), *more, "-x", "none", *words], input=code, text=True, check=True)
    return path


def torch_that_calls(folder: Path, calls: dict[str, int], *, needs: list[Path], cuda: str = "13.4") -> Path:
    """Make the folder of a torch whose one library has a function `try_N` for each call."""
    code = "".join(
        f"extern int {name}(void); int try_{index}(void) {{ return {name}(); }}\n" for index, name in enumerate(calls)
    )
    library(folder / "torch" / "lib" / "libtorch_cuda.so", code, *map(str, needs))
    (folder / "torch" / "version.py").write_text(f"__version__ = '2.99.0+cu134'\ncuda = {cuda!r}\n")
    return folder / "torch"


def run(torch_folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run Python on a phantom, where `lib` is that torch's library."""
    load = f"import ctypes; lib = ctypes.CDLL({str(torch_folder / 'lib' / 'libtorch_cuda.so')!r})\n"
    with Phantoms([find_gpu("t4")], torch=read_torch(torch_folder)) as phantoms:
        words = [sys.executable, "-c", load + code]
        return subprocess.run(words, env=phantoms.environment(), capture_output=True, text=True, check=False)


def test_functions_and_versions_that_nobody_knows_load_and_a_call_into_each_is_one_line(tmp_path):
    blas = "libcublas.so.14 { cublasFrobnicate; }; libcublas.so.15 { cublasTwist; } libcublas.so.14;"
    needs = [
        library(
            tmp_path / "libcublas.so.14",
            "int cublasFrobnicate() {return 0;} int cublasTwist() {return 0;}",
            versions=blas,
        ),
        library(
            tmp_path / "libcudart.so.13",
            "int cudaFrobnicate() {return 0;} int odd() {return 0;}",
            versions="libcudart.so.13 { *; };",
        ),
        library(tmp_path / "libcudss.so.7", "int cudssFrobnicate() {return 0;}"),
    ]
    # What each returns: its library's "not supported", or an error where nobody knows that word.
    calls = {"cublasFrobnicate": 15, "cublasTwist": 15, "cudaFrobnicate": 801, "odd": 1, "cudssFrobnicate": 1}
    folder = torch_that_calls(tmp_path, calls, needs=needs)
    for path in needs:
        path.unlink()
    done = run(folder, f"print([lib[f'try_{{i}}']() for i in range({len(calls)})], lib.try_0())")
    assert done.stdout.strip() == f"{list(calls.values())} 15", done.stderr
    told = done.stderr.splitlines()
    assert [line.partition(",")[0] for line in told] == [f"brim: the job calls {name}" for name in calls]
    assert all("--engine trace" in line for line in told)


def test_a_library_that_another_package_has_is_no_new_one_of_cuda(tmp_path):
    site = tmp_path / "site"
    own = library(site / "libcurious" / "libcurious.so.1", "int curious() {return 7;}")
    folder = torch_that_calls(site, {"curious": 7}, needs=[own])
    installed = site / "curious-1.dist-info"
    installed.mkdir()
    (installed / "RECORD").write_text("libcurious/libcurious.so.1,,\n")
    assert "libcurious.so.1" not in read_asked(folder).libraries
    (installed / "RECORD").write_text("")
    assert "libcurious.so.1" in read_asked(folder).libraries


def test_functions_that_torch_looks_for_by_name_are_found_and_told_when_called(tmp_path):
    folder = torch_that_calls(tmp_path, {}, needs=[])
    library(folder / "lib" / "libc10_cuda.so", 'const char *names[] = {"cuFrobnicate", "cuMemCreate", "curious"};')
    assert {"cuFrobnicate", "cuMemCreate"} <= read_asked(folder).functions
    done = run(folder, "print(ctypes.CDLL('libcuda.so.1').cuFrobnicate())")
    assert done.stdout.strip() == "801"
    assert "brim: the job calls cuFrobnicate" in done.stderr


def test_what_triton_compiles_later_links_with_a_driver_that_has_its_functions(tmp_path):
    folder = torch_that_calls(tmp_path, {}, needs=[])
    source = tmp_path / "triton" / "backends" / "nvidia" / "driver.c"
    source.parent.mkdir(parents=True)
    source.write_text("int load(void) { return cuFrobnicate (7); }")
    done = run(folder, "print(ctypes.CDLL(None).cuFrobnicate())")
    assert "brim: the job calls cuFrobnicate" in done.stderr


@pytest.mark.parametrize(("cuda", "newer"), [("14.0", "brim"), ("11.8", "torch")])
def test_a_torch_for_a_cuda_that_nobody_knows_is_told_before_it_runs(tmp_path, cuda, newer):
    folder = torch_that_calls(tmp_path, {}, needs=[], cuda=cuda)
    with pytest.raises(
        InputError, match=rf"CUDA {cuda}, and .* for CUDA 12 and 13\. Use a newer {newer}, or `brim predict --engine"
    ):
        Phantoms([find_gpu("t4")], torch=read_torch(folder))


def test_a_torch_that_asks_for_too_much_is_told_how_much(tmp_path):
    many = {f"cublasFrobnicate{index}": 15 for index in range(1100)}
    folder = torch_that_calls(tmp_path, many, needs=[])
    with pytest.raises(
        InputError, match="1100 functions that phantom GPUs do not have, and this brim has room for 1024"
    ):
        Phantoms([find_gpu("t4")], torch=read_torch(folder))


def test_the_library_of_a_symbol_is_known_by_its_version(tmp_path):
    needs = [library(tmp_path / "libcufft.so.12", "int odd() {return 0;}", versions="libcufft.so.12 { *; };")]
    folder = torch_that_calls(tmp_path, {"odd": 16}, needs=needs)
    made = read_shared_object(folder / "lib" / "libtorch_cuda.so")
    assert made is not None
    assert dict(made.wanted())["odd"] == "libcufft.so.12"
