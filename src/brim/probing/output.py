"""What a program's output says about why it failed, where there is no exception to look at."""

from __future__ import annotations

import re

from brim.findings import Verdict
from brim.probing.verdicts import ERROR_TEXTS, OOM_TEXTS

# The last line of a traceback: a type, and mostly a message; torchrun puts the rank before it.
_EXCEPTION = re.compile(r"(?:\[rank\d+\]:\s*)?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit))(?::\s*(.*))?")
# What launchers raise when one of their processes has failed: the reason came before.
_LAUNCHERS = ("ChildFailedError", "CalledProcessError", "ProcessExitedException", "ProcessRaisedException")
_NUM_LAST_LINES = 20
# How the names of all types end that mean memory: Python's, NumPy's `_ArrayMemoryError`, torch's `OutOfMemoryError`.
_MEMORY_TYPE = "MemoryError"
# What `brim.Accumulator` and `brim.recover` print when they go on with less.
_RECOVERED = re.compile(r": out of memory with .*; going on with ")


def classify_text(text: str) -> tuple[Verdict, str]:
    r"""Return `oom` or `error` for a program that failed after printing `text`, and the line that says so.

    >>> classify_text("step 3\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    (<Verdict.OOM: 'oom'>, 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB')
    >>> classify_text("CUDA out of memory, halving the batch\nValueError: batch 0")
    (<Verdict.ERROR: 'error'>, 'ValueError: batch 0')
    """
    lines = [line.strip() for line in text.splitlines()]
    raised = [
        match for match in map(_EXCEPTION.fullmatch, lines) if match and match[1].split(".")[-1] not in _LAUNCHERS
    ]
    if raised:
        last = raised[-1]
        message = last[2] or ""
        line = f"{last[1]}: {message}".removesuffix(": ")
        is_oom = last[1].endswith(_MEMORY_TYPE) or means_memory(message)
        return (Verdict.OOM if is_oom else Verdict.ERROR), line
    # No traceback: a program in another language, or one that was aborted.
    for line in reversed(lines[-_NUM_LAST_LINES:]):
        if means_memory(line):
            return Verdict.OOM, line
    return Verdict.ERROR, next((line for line in reversed(lines) if line), "")


def means_memory(line: str) -> bool:
    """Return whether a line of output says that memory ran out.

    >>> means_memory("RuntimeError: CUDA out of memory."), means_memory("memory: 3 GiB used")
    (True, False)
    >>> means_memory("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 PiB")
    True
    """
    raised = _EXCEPTION.fullmatch(line.strip())
    if raised and raised[1].endswith(_MEMORY_TYPE):
        return True
    return any(sure in line for sure in OOM_TEXTS) and not any(never in line for never in ERROR_TEXTS)


def tells_of_recovery(line: str) -> bool:
    """Return whether a line of output says that brim itself went on after memory ran out.

    >>> tells_of_recovery("Window 37: out of memory with microbatches of 16 on rank 1; going on with 8.")
    True
    """
    return _RECOVERED.search(line) is not None
