"""Run a workload's step on fake tensors and keep a ledger of its memory."""

from __future__ import annotations

import gc
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch._dynamo
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)

from brim.cases import AskedCase, Case
from brim.errors import TraceError
from brim.tracing.backing import Backing
from brim.tracing.cuda_like import as_on_cuda
from brim.tracing.fake import fake_tensors, modes_in_autograd
from brim.tracing.faking import Faker, modules_faked_when_moved
from brim.tracing.generation import generation_to_the_end
from brim.tracing.gpu_questions import memory_of
from brim.tracing.ledger import Ledger
from brim.tracing.loaders import loaders_in_order
from brim.tracing.places import GPU, AllOnGpu, Places
from brim.tracing.record import Phase, Record
from brim.tracing.shortcuts import Shortcuts
from brim.tracing.watching import Watch, watched
from brim.workload import Workload, prepare

# Optimizer state appears in the first step of training, so only the second shows the peak.
NUM_STEPS = {"train": 2, "eval": 1, "generate": 1}
# How torch says that something needs a GPU or a build for one.
_NEEDS_GPU = (
    "CUDA build",
    "CUDA support",
    "CUDA enabled",
    "NVIDIA driver",
    "No CUDA GPUs",
    "not linked with support for cuda",
)
# How torch says that a tensor is sparse.
_SPARSE = "Cannot access storage of"
# How torch says that a fake tensor has no values to show.
_NUMPY = ".numpy() is not supported"
# How people say so in checks of their own while they build; later, CUDA in a message says no such thing.
_SAYS_GPU = re.compile(r"\b(gpus?|cuda)\b", re.IGNORECASE)
_HERE = str(Path(__file__).parent)
_TORCH = str(Path(torch.__file__).parent)
_OPTIMIZERS = str(Path(torch.optim.__file__).parent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What one run on fake tensors showed.

    Attributes:
        held_bytes: What was live after each step.
        record: Every storage with its lifetime.
        selects_all: Whether something was selected by values, and so counted whole.
        has_recurrence: Whether a recurrent layer ran, whose cuDNN kernels keep what a trace does not show.
        token_stride: Of how many tokens of a long generation one was entered.
        asks_gpu: Whether the workload asked which GPU it runs on, so that others may trace otherwise.
        is_unplaced: Whether the workload puts nothing on the GPU, and so all was counted.
        unread: The names of the case that the workload never asked for.
        missed: The names that it asked for and that the case does not have.
    """

    microbatch: int
    peak_bytes: int
    num_operations: int
    held_bytes: tuple[int, ...]
    record: Record
    selects_all: bool = False
    has_recurrence: bool = False
    token_stride: int = 1
    asks_gpu: bool = False
    is_unplaced: bool = False
    unread: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()


def trace(
    workload_class: type[Workload],
    case: Case,
    microbatch: int,
    *,
    steps: int | None = None,
    backing: Backing | None = None,
    capability: tuple[int, int] | None = None,
    tell: Callable[[int], None] | None = None,
) -> Trace:
    """Trace one microbatch; raise `TraceError` with the reason where the step cannot run on fake tensors.

    Args:
        workload_class: What to trace.
        case: The setting of the input shape.
        microbatch: How many samples to ask of `batch`.
        steps: How many steps to run; None for as many as it takes to see the peak.
        backing: Real memory to hold behind the fake tensors.
        capability: The compute capability of the GPU to behave as; None for the CPU.
        tell: Called with the number of operations every now and then.
    """
    run = partial(_trace, workload_class, case, microbatch, steps=steps, tell=tell)
    if capability is None:
        return run(backing=backing)
    traced = run(capability=capability, places=Places())
    if traced.record.storages:
        return traced
    return replace(run(capability=capability, places=AllOnGpu()), is_unplaced=True)


def _trace(
    workload_class: type[Workload],
    case: Case,
    microbatch: int,
    *,
    steps: int | None,
    backing: Backing | None = None,
    tell: Callable[[int], None] | None,
    capability: tuple[int, int] | None = None,
    places: Places | None = None,
) -> Trace:
    device = torch.device("cpu") if capability is None else GPU
    asked = AskedCase(case)
    held_bytes: list[int] = []
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(redirect_stdout(sys.stderr))  # what the workload prints is no part of an answer
        stack.enter_context(torch._dynamo.config.patch(disable=True))  # what is compiled is traced as it was written
        answers = None
        if capability is not None and places is not None:
            answers = stack.enter_context(as_on_cuda(capability, places))
        mode = stack.enter_context(fake_tensors(on_cuda=capability is not None))
        ledger = stack.enter_context(
            Ledger(backing, Shortcuts(mode), capability=capability, microbatch=microbatch, places=places, tell=tell)
        )
        if capability is not None:
            stack.enter_context(memory_of(ledger))
        stack.enter_context(modules_faked_when_moved(mode))
        stack.enter_context(modes_in_autograd())
        stack.enter_context(loaders_in_order())
        watch = stack.enter_context(watched(ledger))
        built = _build_faked(workload_class, asked, device)
        workload = built or _build_for_real(workload_class, asked, device, ledger, watch)
        for tensor in _fake_the_rest(workload, mode, ledger):
            if places is None or places.has(tensor):
                ledger.enter(tensor)
        watch.name_modules(vars(workload))
        ledger.generation = stack.enter_context(generation_to_the_end(ledger))
        ledger.phase = Phase.BATCH
        with _phase("batch"):
            batch = workload.batch(microbatch)
        ledger.phase = Phase.FORWARD
        num_before = ledger.num_operations
        for _ in range(steps or NUM_STEPS[workload.kind]):
            ledger.begin_step()
            with _phase("step"):
                workload.step(batch)
            watch.mark_gradients()
            held_bytes.append(ledger.live_bytes)
        record = ledger.record
    if ledger.num_operations == num_before:
        raise TraceError("the step runs no torch operation: there is nothing to predict. Run the model in `step`.")
    return Trace(
        microbatch=microbatch,
        peak_bytes=ledger.peak_bytes,
        num_operations=ledger.num_operations,
        held_bytes=tuple(held_bytes),
        record=record,
        selects_all=ledger.selects_all,
        has_recurrence=ledger.has_recurrence,
        token_stride=ledger.token_stride,
        asks_gpu=answers is not None and answers.is_asked,
        unread=asked.unread,
        missed=asked.missed,
    )


def _build_faked(workload_class: type[Workload], case: Case, device: torch.device) -> Workload | None:
    """Build on fake tensors; None where that fails."""
    workload = prepare(workload_class, case, device)
    try:
        workload.build()
    except Exception:  # noqa: BLE001  the user's code may raise anything; it is built for real then
        return None
    return workload


def _build_for_real(
    workload_class: type[Workload],
    case: Case,
    device: torch.device,
    ledger: Ledger,
    watch: Watch,
) -> Workload:
    """Build on real tensors."""
    watch.forget()
    gc.collect()  # what is left of the attempt on fake tensors
    workload = prepare(workload_class, case, device)
    with _phase("build"), ledger.of_real_tensors():
        workload.build()
    return workload


def _fake_the_rest(workload: Workload, mode: FakeTensorMode, ledger: Ledger) -> list[torch.Tensor]:
    """Fake what a workload has of real tensors: all where it was built so, else weights that were loaded.

    The fakes are returned when the real ones are gone, so that there is never memory for both.
    """
    faker = Faker(mode)
    with torch._C.DisableTorchFunction():
        faker.workload(workload)
        for tensor, faked in faker.pairs:
            ledger.hand_over(tensor, faked)
    return [faked for _, faked in faker.pairs]


@contextmanager
def _phase(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        why = _not_on_fakes(error, name)
        if why is not None:
            raise TraceError(f"{name} does not run on fake tensors: {why}") from error
        first_line = _first_line(error)
        raise TraceError(f"{name} fails: {_users_line(error)} raises {type(error).__name__}: {first_line}") from error


def _not_on_fakes(error: Exception, phase: str) -> str | None:
    """Return what fake tensors cannot do, where in the user's code, and what to do about it.

    None where the error may be the user's own.
    """
    where = _users_line(error)
    if isinstance(error, DataDependentOutputException) and _is_optimizers(error):
        return (
            f"{where} runs an optimizer that asks for values, which a trace does not have. Predict with another that "
            "keeps as much."
        )
    if isinstance(error, DataDependentOutputException):
        return (
            f"{where} asks for a tensor's value ({error.func}), which a trace does not have. "
            f"Keep such a question out of the workload's {phase}, or answer it with the worst case. A number that is "
            "only printed or kept is fine as `.item()`."
        )
    if isinstance(error, DynamicOutputShapeException):
        return (
            f"{where} makes a tensor whose size depends on values ({error.func}), which a trace does not have. "
            "Give it a fixed, worst-case size in the workload."
        )
    if isinstance(error, UnsupportedOperatorException) or "fake impl" in str(error):
        operator = getattr(error, "func", None) or _named_operator(error)
        return (
            f"{where} calls {operator}, which has no fake implementation. "
            f'Register one with torch.library.register_fake("{_operator_name(operator)}").'
        )
    first_line = _first_line(error)
    told = f"{where} raises {type(error).__name__}: {first_line}"
    if _SPARSE in first_line:
        return f"{told}. What is sparse is not counted: use sparse=False in the workload, which needs more."
    if _NUMPY in first_line:
        return f"{told} A trace has no values for NumPy: keep that out of the workload's {phase}."
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
    """Return the innermost line that is neither torch's nor brim's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((_HERE, _TORCH, "<"))]
    if not own:
        return "the workload"
    return f"{Path(own[-1].filename).name}:{own[-1].lineno} ({(own[-1].line or '').strip()})"
