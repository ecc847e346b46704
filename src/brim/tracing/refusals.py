"""What is said where a workload does not run on fake tensors: the line, what it asks for, and what to do."""

from __future__ import annotations

import inspect
import re
import sysconfig
import traceback
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from brim.tracing.branches import MOST_BRANCHES, UnansweredError
from brim.tracing.questions import EndlessLoopError, line_at
from brim.tracing.recorder import MOST_OPERATIONS, NoEndError
from brim.tracing.unknown import UnknownNumber
from brim.workload import Workload

# How torch says that something needs a GPU or a build for one.
_NEEDS_GPU = (
    "CUDA build",
    "CUDA support",
    "CUDA enabled",
    "NVIDIA driver",
    "No CUDA GPUs",
    "not linked with support for cuda",
    "Tried to instantiate dummy base class",
)
# What to pass to functions that else look at values for it.
_HINTS = {
    "one_hot(": " Pass num_classes to one_hot.",
    "bincount(": " Pass minlength to bincount.",
    "repeat_interleave(": " Pass output_size to repeat_interleave.",
}
# How torch says that a tensor is sparse.
_SPARSE = "Cannot access storage of"
# How torch speaks of what fake tensors cannot be, and what to use instead.
_INSTEAD = {
    "self.shape_env must not be None": "Nested tensors are not traced: pad to the longest in the workload.",
    "uninitialized parameter": "Lazy modules are not traced: give layers their sizes, as in nn.Linear(512, 10).",
}
# How people say so in checks of their own while they build; later, CUDA in a message says no such thing.
_SAYS_GPU = re.compile(r"\b(gpus?|cuda)\b", re.IGNORECASE)
# How people and libraries say that something was done before, and why it is.
_SAYS_AGAIN = re.compile(r"\b(twice|already)\b", re.IGNORECASE)
_RUNS_AGAIN = (
    " (`build` runs once for every size that is traced, all in one process: do what may be done only once where it was "
    "not done yet)"
)
_HERE = str(Path(__file__).parent)
_WORKLOAD = inspect.getfile(Workload)
_TORCH = str(Path(torch.__file__).parent)
_OPTIMIZERS = str(Path(torch.optim.__file__).parent)
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))


def told(error: Exception, phase: str, *, is_refused: bool = False) -> str:
    """Return what to say of an error that a workload's build, batch or step ended in.

    Args:
        error: The error.
        phase: What it ended.
        is_refused: Whether a question about a value was refused before.
    """
    if traceback.extract_tb(error.__traceback__)[-1].filename == _WORKLOAD:
        return str(error)  # a method is missing
    why = _not_on_fakes(error, phase, is_refused=is_refused)
    if why is not None:
        return f"{phase} does not run on fake tensors: {why}"
    if isinstance(error, StopIteration):
        return (
            f"{phase} fails: {_users_line(error)} has too few samples for a microbatch of this size. Make `batch` "
            "return as many as it is asked for, or search up to what there is with --cap."
        )
    hint = _RUNS_AGAIN if phase == "build" and _SAYS_AGAIN.search(str(error)) else ""
    return f"{phase} fails: {_users_line(error)} raises {type(error).__name__}: {_first_line(error)}{hint}"


def is_own(error: Exception, phase: str, *, is_refused: bool) -> bool:
    """Return whether an error is the workload's own, which a run would end in as well."""
    return not is_refused and _not_on_fakes(error, phase, is_refused=False) is None


def _not_on_fakes(error: Exception, phase: str, *, is_refused: bool) -> str | None:
    """Return what fake tensors cannot do, where in the user's code, and what to do about it.

    None where the error may be the user's own.
    """
    where = _users_line(error)
    if isinstance(error, EndlessLoopError):
        return (
            f"{where} is the only way out of its loop and asks for a tensor's value, which a trace does not have. End "
            f"the loop at the longest length as well, e.g. `for _ in range(max_new_tokens):`."
        )
    if isinstance(error, NoEndError):
        return (
            f"{where} runs after {MOST_OPERATIONS:,} operations, and there is no end to be seen. If it is a loop, give "
            f"it an end in the workload's {phase}, such as one pass over the batch."
        )
    if isinstance(error, DataDependentOutputException) and _is_optimizers(error):
        return (
            f"{where} runs an optimizer that asks for values, which a trace does not have. Predict with another that "
            "keeps as much."
        )
    if isinstance(error, UnansweredError):
        return (
            f"{where} asks for a tensor's value, which a trace does not have, and is one branch too many: each way is "
            f"traced for {MOST_BRANCHES} at most. Leave some out of the workload's {phase}, with the worst case alone."
        )
    hint = next((hint for name, hint in _HINTS.items() if name in where), "")
    if isinstance(error, DataDependentOutputException):
        return (
            f"{where} asks for a tensor's value ({error.func}), which a trace does not have. "
            f"Keep such a question out of the workload's {phase}, or answer it with the worst case. A number that is "
            f"only printed or kept is fine as `.item()`.{hint}"
        )
    if isinstance(error, DynamicOutputShapeException):
        return (
            f"{where} makes a tensor whose size depends on values ({error.func}), which a trace does not have. "
            f"Give it a fixed, worst-case size in the workload.{hint}"
        )
    if isinstance(error, UnsupportedOperatorException) or "fake impl" in str(error):
        operator = getattr(error, "func", None) or _named_operator(error)
        return (
            f"{where} calls {operator}, which has no fake implementation. "
            f'Register one with torch.library.register_fake("{_operator_name(operator)}").'
        )
    first_line = _first_line(error)
    # torch takes a number that refuses to be a size for no number at all.
    if UnknownNumber.__name__ in first_line or (is_refused and isinstance(error, TypeError)):
        words = f" ({first_line})" if UnknownNumber.__name__ in first_line else ""  # else they speak of another mistake
        return (
            f"{where} uses a number that comes from a tensor's value, which a trace does not have{words}. "
            f"Use the worst case in the workload's {phase}."
        )
    told = f"{where} raises {type(error).__name__}: {first_line}"
    if _SPARSE in first_line:
        return f"{told}. What is sparse is not counted: use sparse=False in the workload, which needs more."
    for sign, instead in _INSTEAD.items():
        if sign in first_line:
            return f"{told.removesuffix('.')}. {instead}"
    is_check = phase == "build" and isinstance(error, (AssertionError, RuntimeError)) and _SAYS_GPU.search(str(error))
    if is_check or any(sign in str(error) for sign in _NEEDS_GPU):
        return (
            f"{told.removesuffix('.')}. It needs a real GPU, which a trace does without. Move tensors with "
            "`.to(self.device)` alone, and leave the rest out of the workload."
        )
    return None


def _is_optimizers(error: Exception) -> bool:
    """Return whether it was raised by an optimizer of torch itself, not by what that calls."""
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    asking = [name for name in frames if name.startswith(_OPTIMIZERS) or not name.startswith((_HERE, _TORCH, "<"))]
    return bool(asking) and asking[-1].startswith(_OPTIMIZERS)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or "no message").splitlines()[0]


def _named_operator(error: Exception) -> str:
    """Return the operator that a message about a custom one names."""
    named = re.search(r"\w+::\w+", str(error))
    return named[0] if named else "a custom operator"


def _operator_name(operator: object) -> str:
    namespace, _, name = str(operator).partition(".")
    return f"{namespace}::{name.partition('.')[0]}" if name else str(operator)


def _users_line(error: Exception) -> str:
    """Return the innermost line that is neither torch's nor brim's; of a library also the line that called it."""
    frames = traceback.extract_tb(error.__traceback__)
    others = [frame for frame in frames if not frame.filename.startswith((_HERE, _TORCH, "<"))]
    if not others:
        return "the workload"
    own = [frame for frame in others if not frame.filename.startswith(_LIBRARIES)]
    called = f", called by {_line(own[-1])}," if own and own[-1] is not others[-1] else ""
    return _line(others[-1]) + called


def _line(frame: traceback.FrameSummary) -> str:
    return line_at(frame.filename, frame.lineno or 0)
