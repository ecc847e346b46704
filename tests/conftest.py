"""What every test gets: a history of its own, and a look at what it left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import psutil
import pytest

# As many tests run at once as there are cores: one thread for each.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Searches on the CPU start one server then, and not two; `heap` gives a test what most users have.
os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(128 * 2**10))

# A shell lets what it starts in the background ignore Ctrl-C, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no fault of the law that is tested.
_SLOW = [hypothesis.HealthCheck.too_slow]
# The same examples in every run, so that a change alone can turn a test red; `make test-long` looks for new ones.
hypothesis.settings.register_profile("brim", deadline=None, suppress_health_check=_SLOW, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None, suppress_health_check=_SLOW, max_examples=1000)
hypothesis.settings.load_profile("brim")

# Run as programs, never imported.
collect_ignore = ["scripts"]
WORKLOADS = Path(__file__).parent / "workloads"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def pytest_collection_finish() -> None:
    """Keep what all test files import out of every later collection of garbage, which probes in this process need."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_history(nothing_left_behind: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("BRIM_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave glibc's allocator as it is: equal processes differ, and an answer is confirmed by another server."""
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_")


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    before_environment = _environment()
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    yield
    left = [process for process in psutil.Process().children(recursive=True) if process.pid not in before]
    assert not left, f"processes left behind: {left}"
    assert _environment() == before_environment


def _environment() -> dict[str, str]:
    set_by_others = ("PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR")
    return {name: value for name, value in os.environ.items() if name not in set_by_others}


@pytest.fixture
def still_running(own_history: Path) -> Callable[[], list[psutil.Process]]:
    """What this test started and still runs, wherever it went: its environment names the test's own folder."""

    def find_running() -> list[psutil.Process]:
        found = [(process, process.info["environ"] or {}) for process in psutil.process_iter(["environ"])]
        return [process for process, environ in found if environ.get("BRIM_CACHE_DIR") == str(own_history)]

    return find_running


@pytest.fixture
def brim_cli(tmp_path: Path) -> Run:
    """Run the real command line in an empty folder and return what it printed."""

    def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "brim", *arguments], capture_output=True, text=True, cwd=tmp_path, **options
        )

    return run
