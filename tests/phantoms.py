"""Runs Python on phantom GPUs, as a user's job would run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import brim
from brim.devices.catalog import find_gpu
from brim.phantom import Event, Phantoms, read_torch
from brim.phantom.account import Usage

# The CUDA build of torch, which the Makefile installs beside the one that the other tests use.
CUDA = Path(sys.prefix) / "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A job that has ended."""

    exit_code: int
    output: str
    errors: str
    usages: list[Usage]
    events: list[Event]


def run_on_phantom(
    code: str,
    *arguments: str,
    gpus: Sequence[str] = ("rtx-3090",),
    context: int | None = None,
    environment: dict[str, str] | None = None,
    timeout: float = 200,
) -> Done:
    """Run some Python on phantoms with torch's CUDA build."""
    with Phantoms([find_gpu(gpu) for gpu in gpus], torch=read_torch(CUDA / "torch"), context=context) as phantoms:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=phantoms.environment(with_cuda_torch(environment)),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Done(
            exit_code=done.returncode,
            output=done.stdout,
            errors=done.stderr,
            usages=phantoms.account.usages(),
            events=phantoms.events(),
        )


def with_cuda_torch(more: dict[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment with torch's CUDA build first on the path."""
    source = str(Path(brim.__file__).parents[1])
    path = os.pathsep.join([str(CUDA), source, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, **(more or {})}
