"""Runs pytest on phantom GPUs: the tests marked `gpu` then find CUDA devices, as on a machine that has some."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

from brim.devices.catalog import find_gpu
from brim.phantom import Phantoms, read_torch
from tests.phantoms import CUDA, with_cuda_torch

# Two, as some tests are about the second; small ones, as a test that fills a card has its memory filled.
GPUS = ("rtx-3090", "rtx-3090")


def main(arguments: Sequence[str]) -> int:
    """Run pytest with these arguments and return its exit code; that there is nothing to run is no failure."""
    with Phantoms([find_gpu(gpu) for gpu in GPUS], torch=read_torch(CUDA / "torch")) as phantoms:
        environment = phantoms.environment(with_cuda_torch())
        done = subprocess.run([sys.executable, "-m", "pytest", *arguments], env=environment, check=False)
        for event in phantoms.events():
            if event.kind != "remark":
                print(f"{event.kind}: {event.text}", file=sys.stderr)
    return 0 if done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED else done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
