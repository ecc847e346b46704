"""The project's own files that a workload imported, with their hashes."""

from __future__ import annotations

import functools
import os
import site
import sys
import sysconfig
from pathlib import Path

from brim.history import hash_file

_ROOT_MARKS = ("pyproject.toml", "setup.py", ".git")


def project_root(workload_file: Path) -> Path:
    """Return the nearest folder above the workload that looks like a project, else where brim was called, or its own.

    A package is imported from the folder that brim was called in, and so is what it imports.
    """
    for folder in workload_file.resolve().parents:
        if any((folder / mark).exists() for mark in _ROOT_MARKS):
            return folder
    here, folder = Path.cwd().resolve(), workload_file.resolve().parent
    return here if folder.is_relative_to(here) else folder


def imported_sources(workload_file: Path) -> dict[str, str]:
    """Return the hash of every file below the project's root that this process has imported, by path."""
    root = project_root(workload_file)
    outside = [Path(path).resolve() for path in (*site.getsitepackages(), *sysconfig.get_paths().values())]

    @functools.cache  # there are thousands of modules in hundreds of folders
    def own_folder(folder: str) -> Path | None:
        """Return where a folder really is, None where that is not in the project."""
        real = Path(folder).resolve()
        # The root may contain the environment itself, so what is installed is left out by name.
        is_installed = any(real.is_relative_to(path) for path in outside if path != root)
        return real if real.is_relative_to(root) and not is_installed else None

    files = {workload_file.resolve()}
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py"):
            folder, name = os.path.split(path)
            if (own := own_folder(folder)) is not None:
                files.add(own / name)
    return {str(file): digest for file in sorted(files) if (digest := hash_file(file)) is not None}
