"""What a job runs on besides its GPU, as far as it shows in memory."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from brim.errors import InputError

# Where torch reads the settings of its allocator; the second name is the older one.
_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
_EXPANDABLE = "expandable_segments:true"
# What torch's wheels bring where none is installed here to ask.
_DEFAULT_CUDA = (13, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The software of a job.

    Attributes:
        cuda: The version of CUDA that torch was built for.
        expandable_segments: Whether torch's allocator grows its segments in place.
    """

    cuda: tuple[int, int] = _DEFAULT_CUDA
    expandable_segments: bool = False


def runtime_here(*, cuda: str | None = None, expandable_segments: bool | None = None) -> Runtime:
    """Return what is asked for, and the rest as torch and the environment have it here.

    >>> runtime_here(cuda="11.3", expandable_segments=True)
    Runtime(cuda=(11, 3), expandable_segments=True)
    """
    import torch

    if cuda is not None and not isinstance(cuda, str):
        raise InputError(f"cuda is {cuda!r}, which is no text. Write the version in quotes, e.g. cuda='12.8'.")
    if expandable_segments is not None and not isinstance(expandable_segments, bool):
        raise InputError(
            f"expandable_segments is {expandable_segments!r}. Use True, False, or None for what the environment says."
        )
    if expandable_segments is None:
        settings = ",".join(os.environ.get(name, "") for name in _ALLOCATOR_VARIABLES)
        expandable_segments = _EXPANDABLE in settings.lower().replace(" ", "")
    version = torch.version.cuda if cuda is None else cuda
    return Runtime(cuda=_DEFAULT_CUDA if version is None else _parse(version), expandable_segments=expandable_segments)


def _parse(version: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)\.(\d+)(\.\d+)?", version)
    if match is None:
        raise InputError(f"CUDA version {version!r} cannot be read. Write it as 12.8.")
    return int(match[1]), int(match[2])
