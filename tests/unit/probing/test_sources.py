"""Which files a finding depends on."""

import sys
from pathlib import Path

from brim.probing.sources import imported_sources, project_root


def test_a_folder_that_looks_like_a_project_is_its_root(tmp_path: Path):
    (tmp_path / "pyproject.toml").touch()
    inner = tmp_path / "package" / "inner"
    inner.mkdir(parents=True)
    assert project_root(inner / "workload.py") == tmp_path


def test_without_a_project_what_lies_below_the_callers_folder_counts(tmp_path: Path, monkeypatch):
    inner = tmp_path / "package" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "package" / "constants.py").write_text("H = 8\n")
    (inner / "workload.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("package.constants")
    try:
        sources = imported_sources(inner / "workload.py")
    finally:
        del sys.modules["package.constants"], sys.modules["package"]
    assert str(tmp_path / "package" / "constants.py") in sources


def test_a_workload_from_elsewhere_counts_with_its_own_folder(tmp_path: Path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert project_root(tmp_path / "there" / "workload.py") == tmp_path / "there"
