"""The project's own files that a workload imported, with their hashes."""

from __future__ import annotations

import site
import sys
import sysconfig
from pathlib import Path

from brim.history import hash_file

_ROOT_MARKS = ("pyproject.toml", "setup.py", ".git")


def project_root(workload_file: Path) -> Path:
    """Return the nearest folder above the workload that looks like a project, else its own folder."""
    for folder in workload_file.resolve().parents:
        if any((folder / mark).exists() for mark in _ROOT_MARKS):
            return folder
    return workload_file.resolve().parent


def imported_sources(workload_file: Path) -> dict[str, str]:
    """Return the hash of every file below the project's root that this process has imported, by path."""
    root = project_root(workload_file)
    outside = [Path(path).resolve() for path in (*site.getsitepackages(), *sysconfig.get_paths().values())]
    files = {workload_file.resolve()}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or not path.endswith(".py"):
            continue
        file = Path(path).resolve()
        # The root may contain the environment itself, so what is installed is left out by name.
        if file.is_relative_to(root) and not any(file.is_relative_to(folder) for folder in outside if folder != root):
            files.add(file)
    return {str(file): digest for file in sorted(files) if (digest := hash_file(file)) is not None}
