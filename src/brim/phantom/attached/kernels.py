"""Inside a job on phantoms: whether torch was built with kernels for the card at all."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable

import torch

_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([a-z]?)")


def attach() -> None:
    """Look as soon as the process uses CUDA, as torch itself does to warn."""
    torch.cuda._lazy_call(_look)


def has_kernels(capability: tuple[int, int], architectures: Iterable[str]) -> bool:
    """Return whether a card runs what was compiled for one of these.

    Machine code (`sm`) runs on the same major number from its minor one on, with a letter on just that card; what the
    driver compiles (`compute`) runs on every later card.

    >>> has_kernels((8, 9), ["sm_75", "sm_86"]), has_kernels((7, 0), ["sm_75"]), has_kernels((12, 0), ["compute_90"])
    (True, False, True)
    """
    for kind, major, minor, letter in (
        found.groups() for found in map(_ARCHITECTURE.fullmatch, architectures) if found
    ):
        built_for = int(major), int(minor)
        if letter:
            runs = capability == built_for
        elif kind == "compute":
            runs = capability >= built_for
        else:
            runs = capability[0] == built_for[0] and capability[1] >= built_for[1]
        if runs:
            return True
    return False


def _look() -> None:
    architectures = torch.cuda.get_arch_list()
    for device in range(torch.cuda.device_count()):
        capability = torch.cuda.get_device_capability(device)
        if architectures and not has_kernels(capability, architectures):
            name = torch.cuda.get_device_name(device)
            told = (
                f"torch {torch.__version__} has no kernels for {name} (compute capability {capability[0]}."
                f"{capability[1]}, it has {', '.join(architectures)}): on the card the job would end with `no kernel "
                "image is available`. Use a build of torch for an older CUDA."
            )
            ctypes.CDLL(None).brim_remark(b"kernels", told.encode())
