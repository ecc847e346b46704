import re
import subprocess
import sys
from pathlib import Path

import pytest

import brim
from brim.errors import InputError
from brim.watching.following import follow
from brim.watching.job import Job
from brim.watching.telling import ENVIRONMENT, Told, read_told

MIB = 2**20


def watched(code, show=lambda devices, line: None):
    printed = {"stdout": b"", "stderr": b""}

    def output(name, chunk):
        printed[name] += chunk

    with Job([sys.executable, "-c", code], output=output) as job:
        seen = follow(job, show, 0.1)
    return seen, printed


def test_the_memory_of_the_job_and_its_children_is_seen(tmp_path):
    # Each child says when it holds its memory and then waits to be told to end, as the job does.
    child = "held = bytearray(150 * 2**20); print('held', flush=True); input()"
    go = tmp_path / "go"
    code = (
        "import os, subprocess, sys, time\n"
        f"run = lambda: subprocess.Popen([sys.executable, '-c', {child!r}], stdin=-1, stdout=-1, text=True)\n"
        "children = [run(), run()]\n"
        "assert all(child.stdout.readline() for child in children)\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        "[child.communicate('end') for child in children]\n"
    )

    def show(devices, line):
        held = re.search(r"holds (\d+) MiB", line)
        if held and int(held[1]) >= 300:
            go.touch()

    seen, _ = watched(code, show)
    assert seen.exit_code == 0
    assert seen.host_peak_bytes > 300 * MIB


def test_output_arrives_as_it_is_and_an_oom_in_it_is_seen():
    seen, printed = watched(
        "import sys; sys.stdout.write('50%\\r100%\\n'); sys.stderr.write('CUDA out of memory. Tried 2 GiB\\n'); exit(3)"
    )
    assert printed == {"stdout": b"50%\r100%\n", "stderr": b"CUDA out of memory. Tried 2 GiB\n"}
    assert seen.exit_code == 3
    assert seen.oom_lines == ("CUDA out of memory. Tried 2 GiB",)
    assert not seen.was_oom_killed


def test_steps_that_the_job_tells_are_counted():
    seen, _ = watched("import brim\nfor _ in range(4): brim.log_step()")
    assert seen.told.num_steps == 4
    assert seen.told.step_seconds > 0
    assert seen.told.allocator_retries is None


def test_a_program_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="no-such-program cannot be started: No such file"):
        Job(["no-such-program"], output=print).__enter__()


def test_a_job_that_is_interrupted_is_ended(monkeypatch):
    def interrupt(devices, line):
        raise KeyboardInterrupt

    code = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(0)); time.sleep(600)"
    monkeypatch.setattr("brim.watching.job._LEAVE_SECONDS", 0.1)
    with pytest.raises(KeyboardInterrupt):
        watched(code, interrupt)


def test_without_a_watch_a_step_is_told_to_nobody(tmp_path, monkeypatch):
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    monkeypatch.chdir(tmp_path)
    brim.log_step()
    assert list(tmp_path.iterdir()) == []


def test_ranks_are_added_up_and_torn_lines_passed_over(tmp_path: Path):
    path = tmp_path / "told.jsonl"
    path.write_text(
        '{"pid": 1, "allocator_retries": 0, "ooms": 0, "reserved_bytes": 10}\n'
        '{"pid": 2, "allocator_retries": 1, "ooms": 0, "reserved_bytes": 30}\n'
        '{"pid": 1, "allocator_retries": 2, "ooms": 1, "reserved_bytes": 20, "step_seconds": 0.5}\n'
        '{"pid": 2, "alloc'
    )
    assert read_told(path) == Told(num_steps=2, step_seconds=0.5, allocator_retries=3, ooms=1, reserved_bytes=30)
    assert read_told(tmp_path / "none") == Told()


def test_telling_imports_no_torch():
    code = "import brim, sys; brim.log_step(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
