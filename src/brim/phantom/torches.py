"""The torch that a job will import, learnt without importing it: its version, its CUDA, and what it asks for."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from brim.errors import InputError

_ASK_SECONDS = 60
# Of a program's first line, which may name its interpreter.
_LONGEST_LINE = 512
_FIND = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s and s.origin else '')"
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?")
# Majors of CUDA whose interface phantoms have: structures differ from one to the next.
OLDEST_CUDA, NEWEST_CUDA = 12, 13
# What to do without CUDA.
GET_CUDA = (
    "Use `brim predict --engine trace`, or install the CUDA build: `pip install torch` on Linux gives it, and with "
    "--no-deps it comes without NVIDIA's packages, which a phantom does not need"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """An installed torch.

    Attributes:
        folder: Of the package.
        cuda: The version of CUDA that it was built for, e.g. `(13, 0)`; None where it was built without.
        requirements: The versions of the libraries that it was released with, by the names of their packages.
    """

    folder: Path
    version: str
    cuda: tuple[int, int] | None
    requirements: dict[str, tuple[int, ...]]

    def cudnn_version(self) -> int:
        """Return the version of cuDNN that it expects, as `cudnnGetVersion` tells it."""
        major, minor, patch = (*self._required("nvidia-cudnn"), 0, 0, 0)[:3]
        return major * 10_000 + minor * 100 + patch if major else 91_002

    def nccl_version(self) -> int:
        """Return the version of NCCL that it expects, as `ncclGetVersion` tells it."""
        major, minor, patch = (*self._required("nvidia-nccl"), 0, 0, 0)[:3]
        return major * 10_000 + minor * 100 + patch if major else 22_705

    def cublas_version(self) -> int:
        """Return the version of cuBLAS that it expects."""
        major, minor, patch = (*(self._required("nvidia-cublas") or self.cuda or ()), 0, 0, 0)[:3]
        return major * 10_000 + minor * 100 + patch

    def _required(self, package: str) -> tuple[int, ...]:
        return next((version for name, version in self.requirements.items() if name.startswith(package)), ())


def find_torch(words: Sequence[str] = ()) -> Torch:
    """Return the torch that a command's Python would import; that of brim's own where it does not say which it runs.

    Raises:
        InputError: There is none.
    """
    python = _python_of(words[0]) if words else None
    origin = _origin_here() if python is None else _origin_of(python)
    if not origin:
        whose = f"{words[0]} cannot import" if words else "This Python cannot import"
        raise InputError(f"{whose} torch, which a phantom GPU runs. {GET_CUDA}.")
    return read_torch(Path(origin).parent)


def why_unavailable(words: Sequence[str] = ()) -> str | None:
    """Return why no phantom can run here, with what to do; None where one can."""
    if not sys.platform.startswith("linux"):
        return f"Phantom GPUs run on Linux, and this is {sys.platform}. Use --engine trace."
    try:
        torch = find_torch(words)
    except InputError as error:
        return str(error)
    return why_unfit(torch)


def why_unfit(torch: Torch) -> str | None:
    """Return why a torch cannot run on phantoms, with what to do; None where it can."""
    if torch.cuda is None:
        return f"torch {torch.version} was built without CUDA, which a phantom GPU runs. {GET_CUDA}."
    if OLDEST_CUDA <= torch.cuda[0] <= NEWEST_CUDA:
        return None
    other = "brim" if torch.cuda[0] > NEWEST_CUDA else "torch"
    return (
        f"torch {torch.version} was built for CUDA {torch.cuda[0]}.{torch.cuda[1]}, and this brim's phantom GPUs are "
        f"for CUDA {OLDEST_CUDA} and {NEWEST_CUDA}. Use a newer {other}, or `brim predict --engine trace`."
    )


def read_torch(folder: Path) -> Torch:
    """Return what the files of an installed torch say of it."""
    said = (folder / "version.py").read_text(encoding="utf-8")
    version = re.search(r"^__version__\b[^=]*= *['\"]([^'\"]+)", said, re.MULTILINE)
    cuda = re.search(r"^cuda\b[^=]*= *['\"](\d+)\.(\d+)", said, re.MULTILINE)
    return Torch(
        folder=folder,
        version=version[1] if version else "unknown",
        cuda=(int(cuda[1]), int(cuda[2])) if cuda else None,
        requirements=_requirements(folder.parent),
    )


def _python_of(program: str) -> str | None:
    """Return the Python that a program is, or that its first line names, as that of torchrun does."""
    if _PYTHON.fullmatch(Path(program).name):
        return program
    path = shutil.which(program)
    if path is None:
        return None
    with Path(path).open("rb") as file:
        first = file.readline(_LONGEST_LINE).decode(errors="replace")
    named = first.removeprefix("#!").split()[-1:] if first.startswith("#!") else []
    return next((each for each in named if _PYTHON.fullmatch(Path(each).name)), None)


def _origin_here() -> str:
    spec = importlib.util.find_spec("torch")
    return (spec.origin or "") if spec else ""


def _origin_of(python: str) -> str:
    """Ask another Python where its torch is."""
    try:
        done = subprocess.run([python, "-c", _FIND], capture_output=True, text=True, timeout=_ASK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return _origin_here()
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 and done.stdout.strip() else ""


def _requirements(site: Path) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for distribution in importlib.metadata.distributions(name="torch", path=[str(site)]):
        for line in distribution.requires or ():
            match = re.match(r"([\w-]+)(?:\[[^\]]*\])?\s*\(?(?:==|~=|>=)\s*([\d.]+)", line)
            if match:
                found[match[1].lower()] = tuple(int(part) for part in match[2].split(".") if part)
    return found
