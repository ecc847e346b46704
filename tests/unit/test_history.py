"""Findings are remembered by everything that could change them, and never at the cost of the answer."""

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.conftest import WORKLOADS

import brim
from brim.cases import Case
from brim.findings import Finding, Probe, Verdict
from brim.history import History, default_path, make_key

FINDING = Finding(
    case=Case({"rows": 8}),
    microbatch=4,
    stopped_by="memory",
    confirmed=True,
    probes=(Probe(microbatch=4, verdict=Verdict.FITS, peak_bytes=7, step_seconds=0.5, steps=3, samples=12),),
)

WHERE = {"workload": "w", "device": "cpu", "limit_bytes": 9, "sources": {}}


def refuse(message):
    raise AssertionError(message)


def test_a_finding_comes_back_as_it_was(tmp_path: Path):
    source = tmp_path / "train.py"
    source.write_text("a = 1")
    history = History(tmp_path / "h.sqlite", warn=refuse)
    from brim.history import hash_file

    history.remember("key", FINDING, **{**WHERE, "sources": {str(source): hash_file(source)}})
    assert history.recall("key") == FINDING
    assert history.recall("other") is None
    assert history.newest(5)[0].finding == FINDING
    assert history.newest(5)[0].limit_bytes == 9
    source.write_text("a = 2")
    assert history.recall("key") is None


def test_the_key_holds_the_allocators_settings(monkeypatch):
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    before = make_key({"a": 1})
    for name, value in {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "MALLOC_MMAP_MAX_": "0"}.items():
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert make_key({"a": 1}) != before


def test_goals_are_told_apart_and_a_row_of_another_brim_is_passed_over(tmp_path: Path):
    history = History(tmp_path / "h.sqlite", warn=refuse)
    history.remember("a", FINDING, **WHERE, goal="fastest")
    history.remember("b", FINDING, **WHERE)
    with closing(sqlite3.connect(tmp_path / "h.sqlite")) as connection, connection:
        connection.execute("INSERT INTO findings VALUES ('c', 0, 'w', 'cpu', '{}', '{\"probes\": 3}')")
    assert [row.goal for row in history.newest(5)] == ["largest", "fastest"]


@pytest.mark.parametrize("content", [b"this is no database" * 100, b""])
def test_a_broken_file_costs_one_warning(tmp_path: Path, content):
    path = tmp_path / "h.sqlite"
    path.write_bytes(content)
    warnings = []
    history = History(path, warn=warnings.append)
    history.remember("key", FINDING, **WHERE)
    assert history.recall("key") == (FINDING if content == b"" else None)
    assert len(warnings) == (0 if content == b"" else 1)


def test_a_folder_that_cannot_be_made_costs_one_warning(tmp_path: Path):
    (tmp_path / "file").write_text("")
    warnings = []
    history = History(tmp_path / "file" / "h.sqlite", warn=warnings.append)
    assert history.recall("key") is None
    assert history.newest(3) == []
    assert len(warnings) == 1
    assert "going on without it" in warnings[0]


def test_several_brims_may_write_at_once(tmp_path: Path):
    path = tmp_path / "h.sqlite"
    code = (
        "import sys; from pathlib import Path; from tests.unit.test_history import *\n"
        "history = History(Path(sys.argv[1]), warn=refuse)\n"
        "for i in range(20): history.remember(f'{sys.argv[2]}-{i}', FINDING, **WHERE)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, path, str(n)], cwd=WORKLOADS.parents[1]) for n in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len(History(path, warn=refuse).newest(100)) == 60


def find(folder, **settings):
    return brim.find(f"{folder}/simple.py:Train", device="cpu", memory="640MiB", cap=8, **settings)[0]


def test_a_hit_costs_one_confirming_probe_and_a_changed_source_a_search(tmp_path: Path):
    shutil.copy(WORKLOADS / "simple.py", tmp_path)
    first = find(tmp_path)
    again = find(tmp_path)
    assert len(first.probes) >= 2
    assert len(again.probes) == 1
    assert again.confirmed
    assert again.microbatch == first.microbatch == 8
    with (tmp_path / "simple.py").open("a") as file:
        file.write("# changed\n")
    assert len(find(tmp_path).probes) >= 2
    assert len(find(tmp_path, steps=2).probes) >= 2


def test_a_remembered_answer_that_no_longer_holds_is_searched_anew(tmp_path: Path, monkeypatch):
    shutil.copy(WORKLOADS / "simple.py", tmp_path)
    too_big = Finding(case=Case(), microbatch=4096, stopped_by="memory", confirmed=True, probes=())
    monkeypatch.setattr(History, "recall", lambda self, key: too_big)
    finding = find(tmp_path)
    assert finding.microbatch == 8
    assert finding.confirmed


def test_an_unwritable_cache_directory_costs_a_warning_not_the_answer(tmp_path: Path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BRIM_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert find(WORKLOADS).microbatch == 8
    assert "going on without it" in caplog.text


def test_the_history_lies_in_the_users_cache_directory(monkeypatch):
    monkeypatch.delenv("BRIM_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_path() == Path("/somewhere/brim/findings.sqlite")
    monkeypatch.setenv("BRIM_CACHE_DIR", os.fspath("/elsewhere"))
    assert default_path() == Path("/elsewhere/findings.sqlite")
