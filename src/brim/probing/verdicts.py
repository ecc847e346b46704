"""What counts as out of memory, and what does not."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType, TracebackType

from brim.findings import Verdict

# Types that always mean memory, by name: torch is not imported to judge an exception.
_OOM_TYPES = ("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError", "MemoryError")

# Texts of a RuntimeError that always mean memory, by backend.
OOM_TEXTS = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "HIP out of memory",
    "XPU out of memory",
    "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
    "MPS backend out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "std::bad_alloc",
)

# Texts that mean memory only when memory is nearly full; at other times they have other causes.
OOM_TEXTS_WHEN_FULL = (
    "CUDNN_STATUS_NOT_SUPPORTED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "unable to find an engine",
    "CUFFT_INTERNAL_ERROR",
    "can't start new thread",
    "could not create a primitive",
    "could not create a memory",
    "Cannot allocate memory",
    "failed to map segment from shared object",
)

# Texts that are never memory, whatever else they contain.
ERROR_TEXTS = ("illegal memory access", "device-side assert", "misaligned address")

_LONGEST_DESCRIPTION = 300
# How much of a traceback goes from one process to another: its message may be as long as a model's weights.
LONGEST_TEXT = 20_000
_LONGEST_SOURCE = 80
_BRIM = str(Path(__file__).parents[1])
_INSTALLED = re.compile(r"/(site|dist)-packages/")


def classify(error: BaseException, *, nearly_full: bool) -> Verdict:
    """Return `oom` or `error` for an exception, looking through `raise … from …`.

    >>> classify(MemoryError(), nearly_full=False)
    <Verdict.OOM: 'oom'>
    >>> classify(RuntimeError("CUDA error: an illegal memory access was encountered"), nearly_full=True)
    <Verdict.ERROR: 'error'>
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if _is_oom(cause, nearly_full):
            return Verdict.OOM
        seen.add(id(cause))
        cause = cause.__cause__
    return Verdict.ERROR


def describe(error: BaseException) -> str:
    r"""Return an exception in one line.

    >>> describe(ValueError("batch 0\nis too small"))
    'ValueError: batch 0'
    """
    lines = (str(error) or "no message").splitlines()
    return f"{type(error).__name__}: {lines[0]}"[:_LONGEST_DESCRIPTION]


def bounded(text: str) -> str:
    """Return a text that is to be shown, without the middle of one that is endless.

    >>> len(bounded("x" * 10**7)) < 2 * LONGEST_TEXT
    True
    """
    if len(text) <= LONGEST_TEXT:
        return text
    half = LONGEST_TEXT // 2
    return f"{text[:half]}\n… {len(text) - 2 * half:,} characters are left out …\n{text[-half:]}"


def line_of(error: BaseException) -> str | None:
    """Return the innermost line of the user's own code that an error came through, as `file.py:12 (what it says)`.

    Where the error is still on its way up, that may be a line that has called the caller of this.
    """
    below = [(each.tb_frame, each.tb_lineno) for each in _links(error.__traceback__)]
    above = [(frame, frame.f_lineno) for frame in _callers(sys._getframe(1))]
    return _first_of_user([*reversed(below), *above])


def line_above(frame: FrameType | None) -> str | None:
    """Return the line of the user's own code that runs in a frame, or has called it."""
    return _first_of_user((each, each.f_lineno) for each in _callers(frame))


def _first_of_user(inside_out: Iterable[tuple[FrameType, int]]) -> str | None:
    return next((_told(frame, line) for frame, line in inside_out if is_users_file(frame.f_code.co_filename)), None)


def _links(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _told(frame: FrameType, line: int) -> str:
    path = frame.f_code.co_filename
    source = linecache.getline(path, line).strip()
    return f"{Path(path).name}:{line}" + (f" ({source[:_LONGEST_SOURCE]})" if source else "")


def is_users_file(path: str) -> bool:
    """Return whether a file is neither an installed package's nor of Python or brim."""
    torch = sys.modules.get("torch")
    # Packages may lie in any folder; torch's neighbours are some.
    beside_torch = (str(Path(torch.__file__).parents[1]),) if torch is not None and torch.__file__ else ()
    return not path.startswith(("<", sys.base_prefix, _BRIM, *beside_torch)) and not _INSTALLED.search(path)


def _is_oom(error: BaseException, nearly_full: bool) -> bool:
    names = {f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.") for cls in type(error).__mro__}
    if names.intersection(_OOM_TYPES):
        return True
    if not isinstance(error, (RuntimeError, OSError, ImportError)):
        return False
    text = str(error)
    if any(never in text for never in ERROR_TEXTS):
        return False
    if any(sure in text for sure in OOM_TEXTS) or ("NCCL" in text and "out of memory" in text):
        return True
    return nearly_full and any(vague in text for vague in OOM_TEXTS_WHEN_FULL)
