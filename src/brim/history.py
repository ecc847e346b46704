"""What was found before: an SQLite file in the user's cache directory.

A broken or unwritable file costs a warning, never the answer.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.findings import FASTEST, LARGEST, Finding

# Settings of allocators and thread pools that change how much memory a run takes; and what glibc's begin with.
ENVIRONMENT = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "CUBLAS_WORKSPACE_CONFIG",
)
_ENVIRONMENT_PREFIX = "MALLOC_"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS findings (
    key TEXT NOT NULL, created REAL NOT NULL, workload TEXT NOT NULL, device TEXT NOT NULL,
    sources TEXT NOT NULL, document TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS findings_by_key ON findings (key, created);
"""
_BUSY_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """One row of the history; its limit is None where an older brim wrote it."""

    created: float
    workload: str
    device: str
    limit_bytes: int | None
    goal: str
    finding: Finding


def default_path() -> Path:
    """Return where the history lies: below BRIM_CACHE_DIR, else in the user's cache directory."""
    folder = os.environ.get("BRIM_CACHE_DIR")
    if folder:
        return Path(folder) / "findings.sqlite"
    import platformdirs  # not there where only a job's part of brim runs

    return Path(platformdirs.user_cache_dir("brim")) / "findings.sqlite"


def make_key(settings: Mapping[str, Any]) -> str:
    """Return the key of everything that could change an answer, the allocators' settings included."""
    environment = {
        name: value for name, value in os.environ.items() if name in ENVIRONMENT or name.startswith(_ENVIRONMENT_PREFIX)
    }
    text = json.dumps({**settings, "environment": environment}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class History:
    """Findings by key; every method succeeds, with a warning where the file does not.

    Attributes:
        problem: Why the file cannot be used, or None.
    """

    def __init__(self, path: Path | None = None, *, warn: Callable[[str], None]) -> None:
        self._path = path or default_path()
        self._warn = warn
        self.problem: str | None = None

    def recall(self, key: str) -> Finding | None:
        """Return the newest finding with this key whose sources are unchanged."""
        rows = self._run("SELECT sources, document FROM findings WHERE key = ? ORDER BY created DESC LIMIT 20", (key,))
        for sources, document in rows:
            try:
                if all(hash_file(Path(path)) == digest for path, digest in json.loads(sources).items()):
                    return Finding.from_dict(json.loads(document))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # written by another version of brim
        return None

    def remember(
        self,
        key: str,
        finding: Finding,
        *,
        workload: str,
        device: str,
        limit_bytes: int,
        sources: Mapping[str, str],
        goal: str = LARGEST,
    ) -> None:
        """Add a finding."""
        document = json.dumps({**finding.to_dict(), "goal": goal, "limit_bytes": limit_bytes})
        row = (key, time.time(), workload, device, json.dumps(dict(sources)), document)
        self._run("INSERT INTO findings VALUES (?, ?, ?, ?, ?, ?)", row)

    def newest(self, limit: int) -> list[Remembered]:
        """Return the newest findings, newest first."""
        rows = self._run(
            "SELECT created, workload, device, document FROM findings ORDER BY created DESC LIMIT ?", (limit,)
        )
        found = []
        for created, workload, device, text in rows:
            try:
                document = json.loads(text)
                finding = Finding.from_dict(document)
                goal = document.get("goal", FASTEST if finding.stopped_by == "rate" else LARGEST)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # written by another version of brim
            found.append(
                Remembered(
                    created=created,
                    workload=workload,
                    device=device,
                    limit_bytes=document.get("limit_bytes"),
                    goal=goal,
                    finding=finding,
                )
            )
        return found

    def _run(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        if self.problem is not None:
            return []
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=_BUSY_SECONDS)) as connection, connection:
                connection.executescript(_SCHEMA)
                return connection.execute(statement, values).fetchall()
        except (OSError, sqlite3.Error) as error:
            self.problem = f"The history {self._path} cannot be used ({error})"
            self._warn(f"{self.problem}; going on without it.")
            return []


def hash_file(path: Path) -> str | None:
    """Return the SHA-256 of a file, or None where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None
