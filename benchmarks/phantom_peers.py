"""brim's phantoms beside their peers: the same scripts, unmodified, on every stand-in for a GPU.

    python benchmarks/phantom_peers.py --fakegpu DIR --prototype DIR --nanogpt DIR --torch DIR --torch DIR

It writes results/phantom-peers.json. A peer whose folder is not given is left out; `--only` and `--jobs` choose. What
is not run again stays as it was.

- FakeGPU: https://github.com/FanBB2333/FakeGPU, commit 7d5cf83cf3ce, built with cmake as its README says. Its native
  libraries stand in for some of CUDA 12's. For the others it needs NVIDIA's packages: `--fakegpu-torch DIR` is a folder
  with both (`pip install --target DIR torch===2.9.1`). By default it multiplies matrices on the CPU; "FakeGPU stubs" is
  a second build without that, `cmake -S . -B build-stubs -DENABLE_FAKEGPU_CPU_SIMULATION=OFF`. Its FakeCUDA runs on
  this Python's own torch and computes everything.
- nanoGPT: https://github.com/karpathy/nanoGPT, commit 3adf61e154c3. Its train.py runs as it is, on random tokens.
- The prototype of brim's phantoms, built for both CUDAs: `run.sh 12|13 COMMAND`. It is not public. For torch 2.13 its
  list of symbols needs three more: cublasSetSmCountTarget, cudaStreamCreateWithFlags and cuptiGetCallbackName.

`--torch` is a folder with a CUDA build. Every card is an RTX 3090; the prototype also has the memory and the context
that brim gives it. Peaks are what `torch.cuda.max_memory_allocated()` and `max_memory_reserved()` say when the script
has ended. Seconds depend on what else the machine does: the load average is kept beside them, and the CPU seconds of
all processes. A run is stopped after `MOST_SECONDS`, or when it takes more than `MOST_HOST_MIB` of the host's memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path
from typing import Any

import brim
from brim.devices.catalog import find_gpu
from brim.phantom import read_torch
from brim.phantom.card import card_of

HERE = Path(__file__).parent
RESULT = HERE / "results" / "phantom-peers.json"
GPU, FAKEGPU_PROFILE = "rtx-3090", "rtx3090"
MOST_SECONDS, MOST_HOST_MIB = 300, 15 * 1024
NANOGPT = "nanogpt"
NANOGPT_OPTIONS = [
    *("--dataset=random", "--block_size=1024", "--gradient_accumulation_steps=2"),
    *("--compile=False", "--max_iters=3", "--eval_iters=1"),
]
# A batch of 1 is there for what computes on the CPU.
SIZES = {
    "gpt": (1, 4, 12, 19),
    "evaluate": (8,),
    "conv": (32,),
    "lora": (1,),
    "lora8b": (1,),
    "lora8b_host": (1,),
    "lstm": (20,),
    NANOGPT: (4, 12, 19),
}
# Runs a script as Python would, then says what torch counted.
RUN = """import json, runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
from torch import cuda
print(json.dumps({"allocated_bytes": cuda.max_memory_allocated(), "reserved_bytes": cuda.max_memory_reserved()}))
"""
FAKECUDA = f"import fakegpu; fakegpu.init(runtime='fakecuda', profile='{FAKEGPU_PROFILE}', device_count=1)\n"
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A stand-in with a torch.

    Attributes:
        torch: Its version.
        words: Come before the script.
        path: For `PYTHONPATH`.
        computes: Whether it does a job's work on the CPU.
    """

    name: str
    torch: str
    words: Sequence[str]
    path: Sequence[Path | str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    computes: bool = False


def main() -> None:
    """Run every job on every contender and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", type=Path, action="append", default=[])
    for name in ("--fakegpu", "--fakegpu-torch", "--prototype", "--nanogpt"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--only", nargs="*", metavar="CONTENDER", help="Such as brim, or 'FakeGPU stubs'.")
    parser.add_argument("--jobs", nargs="*", choices=SIZES, default=list(SIZES))
    options = parser.parse_args()
    options.torch = options.torch or [Path(sys.prefix) / "cuda"]
    rows: list[Row] = json.loads(RESULT.read_text())["runs"] if RESULT.exists() else []
    for contender in _contenders(options):
        if options.only and contender.name not in options.only:
            continue
        for job in options.jobs:
            if job != NANOGPT or (options.nanogpt and not contender.computes):
                rows = _merge(rows, list(_run_sizes(contender, job, options.nanogpt)))
                _keep(rows)
    print(_table(rows))


def _contenders(options: argparse.Namespace) -> Iterator[Contender]:
    python, brims = sys.executable, Path(brim.__file__).parents[1]
    run = [python, "-c", RUN]
    for folder in options.torch:
        torch = read_torch(folder / "torch")
        assert torch.cuda, f"{folder.name} has no CUDA build of torch"
        words = [python, "-m", "brim", "phantom", "--gpu", GPU, "--", *run]
        yield Contender(name="brim", torch=torch.version, words=words, path=(folder, brims))
        if options.prototype:
            card = card_of(find_gpu(GPU), cuda=torch.cuda)
            memory = {"PHANTOM_MEMORY": str(card.memory_bytes), "PHANTOM_CONTEXT": str(card.context_bytes)}
            words = [str(options.prototype.resolve() / "run.sh"), str(torch.cuda[0]), *run]
            yield Contender(name="prototype", torch=torch.version, words=words, path=(folder,), environment=memory)
    if options.fakegpu:
        fakegpu = options.fakegpu.resolve()
        for folder in [options.fakegpu_torch] if options.fakegpu_torch else options.torch:
            torch = read_torch(folder / "torch")
            for name, build in (("FakeGPU native", fakegpu / "build"), ("FakeGPU stubs", fakegpu / "build-stubs")):
                words = [python, "-m", "fakegpu", "--build-dir", str(build)]
                words += ["--profile", FAKEGPU_PROFILE, "--device-count", "1", *run]
                yield Contender(name=name, torch=torch.version, words=words, path=(fakegpu, folder))
        words = [python, "-c", FAKECUDA + RUN]
        yield Contender(name="FakeCUDA", torch=version("torch"), words=words, path=(fakegpu,), computes=True)


def _run_sizes(contender: Contender, job: str, nanogpt: Path | None) -> Iterator[Row]:
    """Run a job at its sizes; nothing larger than a size that was stopped."""
    stopped = None
    for size in SIZES[job]:
        row: Row = {"contender": contender.name, "torch": contender.torch, "job": job, "batch_size": size}
        if stopped:
            row["problem"] = f"not run: batch {stopped} was stopped"
        else:
            row |= _measure(contender, job, size, nanogpt)
            if str(row["problem"]).startswith("stopped"):
                stopped = size
        print(json.dumps(row), flush=True)
        yield row


def _measure(contender: Contender, job: str, size: int, nanogpt: Path | None) -> Row:
    """Run a script once; return its peaks, what it took and why it failed, if it did."""
    script = [str(HERE.resolve() / "phantom_jobs.py"), job, "--batch_size", str(size)]
    path = os.pathsep.join(str(Path(each).resolve()) for each in contender.path)
    load = os.getloadavg()[0]
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        if job == NANOGPT:
            assert nanogpt is not None
            _write_tokens(nanogpt / "data" / "random")
            script = ["train.py", *NANOGPT_OPTIONS, f"--batch_size={size}", f"--out_dir={folder}"]
        began = time.monotonic()
        process = subprocess.Popen(
            [*contender.words, *script],
            env={**os.environ, **contender.environment, "PYTHONPATH": path},
            cwd=nanogpt if job == NANOGPT else folder,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        used, stopped = _watch(process, began)
        seconds = time.monotonic() - began
        out.seek(0)
        err.seek(0)
        said = [json.loads(line) for line in out if line.startswith("{")]
        problem = stopped or _problem(process.returncode, err.read())
    peaks = said[-1] if said and not problem else {}
    return {
        "allocated_bytes": peaks.get("allocated_bytes"),
        "reserved_bytes": peaks.get("reserved_bytes"),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "host_mib": used.ru_maxrss // 1024,
        "load_before": round(load, 1),
        "problem": problem,
    }


def _write_tokens(folder: Path) -> None:
    """Write what nanoGPT reads: the same random tokens each time."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    tokens = array("H", (draw.randrange(50_257) for _ in range(1 << 16)))
    for split in ("train", "val"):
        (folder / f"{split}.bin").write_bytes(tokens.tobytes())


def _watch(process: subprocess.Popen[bytes], began: float) -> tuple[Any, str | None]:
    """Wait for the end, or bring it about; return what was used, and why it was stopped."""
    stopped = None
    while True:
        pid, status, used = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return used, stopped
        if time.monotonic() - began > MOST_SECONDS:
            stopped = f"stopped: no end within {MOST_SECONDS} s"
        elif _resident_mib(process.pid) > MOST_HOST_MIB:
            stopped = f"stopped: more than {MOST_HOST_MIB:,} MiB of the host's memory"
        if stopped:
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.1)


def _resident_mib(group: int) -> int:
    pages = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) == group:
                pages += int((folder / "statm").read_text().split()[1])
        except OSError:
            continue  # it has ended
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def _problem(code: int, errors: str) -> str | None:
    """Return the last error that was printed, without the folders of this machine."""
    if not code:
        return None
    lines = [line.strip() for line in errors.splitlines() if line.strip()] or [""]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    last = re.sub(r"(?<!\w)/(?:[^\s/:'\"]+/)+", "", (named or lines)[-1])[:300]
    return f"{signal.Signals(-code).name if code < 0 else f'exit code {code}'}: {last}"


def _merge(rows: Sequence[Row], fresh: Sequence[Row]) -> list[Row]:
    """Put rows in place of the older ones of the same job on the same contender."""
    key = itemgetter("contender", "torch", "job")
    return [*(row for row in rows if key(row) not in set(map(key, fresh))), *fresh]


def _keep(rows: Sequence[Row]) -> None:
    result = {
        "gpu": GPU,
        "python": sys.version.split()[0],
        "most_seconds": MOST_SECONDS,
        "most_host_mib": MOST_HOST_MIB,
        "runs": rows,
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")


def _table(rows: Sequence[Row]) -> str:
    """Lay out every run as ratios to brim's with the same torch, else with the first."""
    lines = [("job", "contender", "torch", "allocated", "reserved", "seconds", "CPU seconds", "host memory", "problem")]
    for row in sorted(rows, key=lambda row: (list(SIZES).index(row["job"]), row["batch_size"])):
        same = [each for each in rows if (each["job"], each["batch_size"]) == (row["job"], row["batch_size"])]
        brims = [each for each in same if each["contender"] == "brim"]
        (own, *_) = [each for each in brims if each["torch"] == row["torch"]] or brims
        is_own = row is own
        ratios = [
            _cell(row.get(name), own[name], is_own, form)
            for name, form in (
                ("allocated_bytes", "{:,}".format),
                ("reserved_bytes", "{:,}".format),
                ("seconds", "{:.1f} s".format),
                ("cpu_seconds", "{:.1f} s".format),
                ("host_mib", "{:,} MiB".format),
            )
        ]
        lines.append(
            (f"{row['job']} {row['batch_size']}", row["contender"], row["torch"], *ratios, row["problem"] or "")
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)][:-1]
    return "\n".join("  ".join([*map(str.ljust, line, widths), line[-1]]).rstrip() for line in lines)


def _cell(value: float | None, own: float | None, is_own: bool, form: Callable[[float], str]) -> str:
    if value is None:
        return "-"
    if is_own or not own:
        return form(value)
    return "equal" if value == own else f"x {value / own:.4g}"


if __name__ == "__main__":
    main()
