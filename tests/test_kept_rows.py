"""The rows of a benchmark that takes hours, stopped and gone on with."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
# Three rows that never end.
PROGRAM = """
import os, sys, threading
from pathlib import Path
from kept_rows import KeptRows, RowsStoppedError, run_rows

def run(row):
    os.write(1, b"begun\\n")  # at once: others write as well
    threading.Event().wait()

if __name__ == "__main__":
    kept = KeptRows(Path(sys.argv[1]))
    try:
        run_rows(run, [{"size": size} for size in range(3)], kept, processes=2, description="sizes")
    except RowsStoppedError as stopped:
        print(f"stopped: {stopped.num_done} of {stopped.num_rows}")
"""


@pytest.fixture
def kept_rows(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import kept_rows

    yield kept_rows
    del sys.modules["kept_rows"]


def line(size, **figures):
    return json.dumps({"row": {"size": size}, **figures})


def test_a_last_line_that_was_cut_short_is_dropped(kept_rows, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{line(1, bytes=8)}\n{line(2, bytes=16)[:-5]}")
    kept = kept_rows.KeptRows(path)
    assert [result["row"] for result in kept.results] == [{"size": 1}]
    kept.forget_problems([])
    kept.add({"row": {"size": 3}})
    assert path.read_text() == f"{line(1, bytes=8)}\n{line(3)}\n"


def test_rows_that_had_a_problem_are_tried_again_and_no_others(kept_rows, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{line(1, bytes=8)}\n{line(2, problem='no')}\n{line(3, problem='no')}\n")
    kept = kept_rows.KeptRows(path)
    kept.forget_problems([{"size": 1}, {"size": 2}])
    assert [row in kept for row in ({"size": 1}, {"size": 2}, {"size": 3})] == [True, False, True]


def test_a_limit_is_kept_to(kept_rows):
    rows = [{"size": size} for size in range(138)]
    assert [len(kept_rows.spread(rows, limit)) for limit in (1, 100, 138, 1000, None)] == [1, 100, 138, 138, 138]


def test_ctrl_c_ends_all_processes_without_a_word_of_theirs(tmp_path):
    program, path = tmp_path / "program.py", tmp_path / "rows.jsonl"
    program.write_text(PROGRAM)
    path.write_text(f"{line(0, bytes=8)}\n")
    running = subprocess.Popen(
        [sys.executable, str(program), str(path)],
        env={**os.environ, "PYTHONPATH": str(BENCHMARKS)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert [running.stdout.readline() for _ in range(2)] == ["begun\n"] * 2
    os.killpg(running.pid, signal.SIGINT)
    out, errors = running.communicate(timeout=60)
    assert out.splitlines()[-1] == "stopped: 1 of 3"
    assert errors == ""
    assert path.read_text() == f"{line(0, bytes=8)}\n"
