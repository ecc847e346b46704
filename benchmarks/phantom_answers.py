"""From typing to the answer: how long `brim predict` takes on a phantom, in how many runs and in how much host memory.

    python benchmarks/phantom_answers.py                # writes results/phantom-answers.json
    python benchmarks/phantom_answers.py search one     # only some of it

On torch's CUDA build (`make .venv/.installed-cuda`). Seconds depend on what else the machine does: the load average
when a measurement began is kept beside them, and the CPU seconds of all processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CUDA = Path(sys.prefix) / "cuda"
RESULT = HERE / "results" / "phantom-answers.json"
GPU = "rtx-3090"
# The job of `phantom_jobs.py`, the microbatch where only one is asked for, and the seconds and GiB to stay within.
QUESTIONS: dict[str, tuple[str, int | None, float, float | None]] = {
    "search": ("gpt", None, 30, None),
    "one": ("gpt", 18, 5, None),
    "8b": ("lora8b", 1, 60, 4),
    "8b-host": ("lora8b_host", 1, 60, 4),
}


def main() -> None:
    """Measure what was asked for and keep it beside what was measured before."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=f"of {', '.join(QUESTIONS)}; default: all")
    results = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    for name in parser.parse_args().questions or QUESTIONS:
        results[name] = ask(*QUESTIONS[name])
        print(name, json.dumps(results[name]))
    RESULT.write_text(json.dumps(results, indent=2) + "\n")


def ask(job: str, microbatch: int | None, most_seconds: float, most_gib: float | None) -> dict[str, Any]:
    """Run one command as a user would, and return what it took."""
    size = [] if microbatch is None else ["--microbatch", str(microbatch)]
    script = [sys.executable, str(HERE / "phantom_jobs.py"), job, "--batch_size", "{batch}"]
    words = [sys.executable, "-m", "brim", "predict", "--gpu", GPU, "--json", *size, "--", *script]
    path = os.pathsep.join(filter(None, [str(CUDA), os.environ.get("PYTHONPATH")]))
    load, began = os.getloadavg()[0], time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": path}, stdout=output)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - began
        output.seek(0)
        told = json.load(output)
    peak = told["peaks"][-1] if microbatch else next(p for p in told["peaks"] if p["microbatch"] == told["largest"])
    return {
        "job": job,
        "microbatch": peak["microbatch"],
        "runs": len(told["probes"]),
        "seconds": round(seconds, 1),
        "most_seconds": most_seconds,
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "load_before": round(load, 1),
        "host_gib": round(used.ru_maxrss / 2**20, 2),
        "most_host_gib": most_gib,
        **{name: peak[name] for name in ("allocated_bytes", "reserved_bytes", "device_bytes")},
    }


if __name__ == "__main__":
    main()
