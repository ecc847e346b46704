"""What brim itself costs: the time of `brim --help`, and the memory of the process that the user starts."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BRIM = str(Path(sys.executable).with_name("brim"))
_NUM_HELP_RUNS = 5

# Runs the command line in this very process, then tells what the process looked like, on its last line.
_TELL = """
import sys
from pathlib import Path
from brim.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
status = Path("/proc/self/status").read_text()
kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
print()
print(int(kilobytes) * 1024, "torch" in sys.modules)
"""


def measure(address: str, *, limit_bytes: int, cwd: Path) -> dict[str, Any]:
    """Return the figures as plain data.

    Args:
        address: A workload, searched up to a small cap: the parent's memory does not depend on the batch.
        limit_bytes: The memory that the workload may have.
        cwd: Where the address is valid.
    """
    seconds = [_help_seconds() for _ in range(_NUM_HELP_RUNS)]
    _, help_imports_torch = _tell(["--help"], cwd)
    search = ["find", address, *memory_options(limit_bytes), "--cap", "4", "--json", "--no-cache"]
    parent_peak_bytes, find_imports_torch = _tell(search, cwd)
    return {
        "help_seconds": statistics.median(seconds),
        "help_seconds_of_each": seconds,
        "help_imports_torch": help_imports_torch,
        "find_imports_torch": find_imports_torch,
        "parent_peak_bytes": parent_peak_bytes,
    }


def memory_options(limit_bytes: int) -> list[str]:
    """Return the options that give `brim find` exactly this much memory."""
    return ["--device", "cpu", "--memory", str(limit_bytes), "--fill", "1.0"]


def _help_seconds() -> float:
    started = time.perf_counter()
    subprocess.run([BRIM, "--help"], check=True, capture_output=True)
    return round(time.perf_counter() - started, 3)


def _tell(arguments: list[str], cwd: Path) -> tuple[int, bool]:
    """Return the peak resident bytes of the process that runs the command, and whether it imported torch."""
    command = [sys.executable, "-c", _TELL, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=cwd)
    num_bytes, imported = done.stdout.split()[-2:]
    return int(num_bytes), imported == "True"
