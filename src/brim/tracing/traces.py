"""Run a workload's step on fake tensors and keep a ledger of its memory."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch._dynamo
from torch._subclasses.fake_tensor import FakeTensorMode

from brim.cases import AskedCase, Case
from brim.errors import TraceError
from brim.tracing.arrays import arrays_of_trace
from brim.tracing.attention import attending
from brim.tracing.backing import Backing
from brim.tracing.branches import Branches, DeadEndError, OpenBranchError, UnansweredError, Ways
from brim.tracing.chance import Draws, seeded
from brim.tracing.cuda_like import as_on_cuda, default_device_kept
from brim.tracing.fake import fake_tensors, modes_in_autograd
from brim.tracing.faking import Faker, modules_faked_when_moved
from brim.tracing.generation import generation_to_the_end
from brim.tracing.gpu_questions import memory_of
from brim.tracing.ledger import Ledger
from brim.tracing.loaders import loaders_in_order
from brim.tracing.masks import masks_looked_at
from brim.tracing.numeric import numbers_kept_unknown
from brim.tracing.places import GPU, AllOnGpu, Places, tensors_in
from brim.tracing.record import Phase, Record
from brim.tracing.recorder import Recorder
from brim.tracing.references import BatchReferences
from brim.tracing.refusals import is_own, told
from brim.tracing.selections import selecting
from brim.tracing.shortcuts import Shortcuts
from brim.tracing.unknown import Values, values_of_trace
from brim.tracing.watching import Watch, watched
from brim.workload import Workload, prepare

# Optimizer state appears in the first step of training, so only the second shows the peak.
NUM_STEPS = {"train": 2, "eval": 1, "generate": 1}
# How much is said of what ended a first attempt, in characters.
_MOST_TOLD = 200
_NO_BATCH = ". `batch` returned None: does it end with `return`?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What one run on fake tensors showed.

    Attributes:
        held_bytes: What was live after each step.
        record: Every storage with its lifetime.
        selects_all: Whether something was selected by values, and so counted whole.
        records_graph: Whether a module's result is part of a graph for a backward pass.
        has_recurrence: Whether a recurrent layer ran, whose cuDNN kernels keep what a trace does not show.
        token_stride: Of how many tokens of a long generation one was entered.
        batch_rows: Of the tensors in the batch, how long their first dimension is.
        num_samples: How many the loader has of which `batch` took one batch; None without any.
        keeps_batch: Whether every step keeps its batch, so that with one of its own each would hold more.
        draws: Whether random numbers of the host may decide what runs.
        ways: Which way branches on values went that could go either way.
        branches: Where these stand.
        num_updates: How often the optimizer that stepped least did so; None without any.
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
    records_graph: bool = False
    has_recurrence: bool = False
    token_stride: int = 1
    batch_rows: tuple[int, ...] = ()
    num_samples: int | None = None
    keeps_batch: bool = False
    draws: bool = False
    ways: Ways = ()
    branches: tuple[str, ...] = ()
    num_updates: int | None = None
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
    seed: int = 0,
    ways: Ways = (),
    has_fused_attention: bool = True,
    selects_least: bool = False,
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
        has_fused_attention: Whether that GPU has attention that does not keep the scores.
        seed: What random numbers of the host begin with.
        ways: Which way branches on values go, in the order in which they come; one more raises `OpenBranchError`.
        selects_least: Whether of what a step selects by values there is one, and not all.
        tell: Called with the number of operations every now and then.
    """
    run = partial(_trace, workload_class, case, microbatch, steps=steps, seed=seed, ways=ways, tell=tell)
    with selecting(least=selects_least), attending(fused=has_fused_attention):
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
    seed: int,
    ways: Ways,
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
        generators = stack.enter_context(seeded(seed))
        values = stack.enter_context(values_of_trace())
        stack.enter_context(numbers_kept_unknown(sys.modules.get(workload_class.__module__)))
        answers = None
        if capability is not None and places is not None:
            answers = stack.enter_context(as_on_cuda(capability, places))
        mode = stack.enter_context(fake_tensors(values, on_cuda=capability is not None))
        ledger = Ledger(backing)
        values.is_given = ledger.is_given
        recorder = stack.enter_context(
            Recorder(
                ledger,
                Shortcuts(mode),
                capability=capability,
                microbatch=microbatch,
                places=places,
                values=values,
                tell=tell,
            )
        )
        if capability is not None:
            stack.enter_context(memory_of(ledger))
        stack.enter_context(modules_faked_when_moved(mode))
        stack.enter_context(modes_in_autograd())
        loaders = stack.enter_context(loaders_in_order(microbatch))
        stack.enter_context(arrays_of_trace())
        watch = stack.enter_context(watched(ledger))
        if backing is not None:
            backing.begin_build()
        stack.enter_context(default_device_kept())
        workload = _built(workload_class, asked, device, recorder, watch)
        for tensor in _fake_the_rest(workload, mode, ledger):
            if places is None or places.has(tensor):
                ledger.enter(tensor)
        watch.name_modules(vars(workload))
        if backing is not None:
            backing.end_build(ledger.live_bytes)
        stack.enter_context(masks_looked_at())
        recorder.generation = stack.enter_context(generation_to_the_end(ledger))
        ledger.phase = Phase.BATCH
        values.refused.clear()  # what was refused while it was built was built for real
        values.branches = branches = Branches(ways, microbatch)
        draws = Draws(generators)
        loaders.num_samples = None  # of one that is asked for this batch
        with _phase("batch", values):
            batch = workload.batch(microbatch)
        num_samples = loaders.num_samples
        references = BatchReferences(batch)
        batch_rows = tuple(tensor.shape[0] for tensor in tensors_in(batch) if tensor.dim())
        ledger.phase = Phase.FORWARD
        num_before = recorder.num_operations
        for _ in range(steps or NUM_STEPS[workload.kind]):
            ledger.begin_step()
            branches.begin_step()
            with _phase("step", values, hint=_NO_BATCH if batch is None else ""):
                workload.step(batch)
            watch.mark_gradients()
            held_bytes.append(ledger.live_bytes)
            references.after_step()
        record = ledger.record
        is_drawn = draws.are_made(are_asked=values.asks_known)
    if recorder.num_operations == num_before:
        raise DeadEndError("the step runs no torch operation: there is nothing to predict. Run the model in `step`.")
    return Trace(
        microbatch=microbatch,
        peak_bytes=ledger.peak_bytes,
        num_operations=recorder.num_operations,
        held_bytes=tuple(held_bytes),
        record=record,
        selects_all=recorder.selects_all,
        records_graph=watch.records_graph,
        has_recurrence=watch.has_recurrence,
        token_stride=ledger.token_stride,
        batch_rows=batch_rows,
        num_samples=num_samples,
        keeps_batch=references.grow(),
        draws=is_drawn,
        ways=ways,
        branches=branches.lines,
        num_updates=watch.num_updates(vars(workload)),
        asks_gpu=answers is not None and answers.is_asked,
        unread=asked.unread,
        missed=asked.missed,
    )


def _built(
    workload_class: type[Workload], case: Case, device: torch.device, recorder: Recorder, watch: Watch
) -> Workload:
    """Build on fake tensors, or where that fails on real ones."""
    with _phase("__init__", recorder.values, hint=". Make things in `build`, where self.device and self.case are set"):
        workload = prepare(workload_class, case, device)
    try:
        workload.build()
        return workload
    except (Exception, SystemExit) as error:  # noqa: BLE001  the user's code may raise anything
        before = f"{type(error).__name__}: {error}"
    del workload  # with all that it has made
    return _build_for_real(workload_class, case, device, recorder, watch, before=before)


def _build_for_real(
    workload_class: type[Workload],
    case: Case,
    device: torch.device,
    recorder: Recorder,
    watch: Watch,
    *,
    before: str,
) -> Workload:
    """Build on real tensors, given what ended the attempt on fake ones."""
    watch.forget()
    recorder.values.refused.clear()  # which hold the attempt on fake tensors
    gc.collect()
    recorder.ledger.begin_anew()
    workload = prepare(workload_class, case, device)
    with _phase("build", recorder.values, before=before), recorder.of_real_tensors():
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
def _phase(name: str, values: Values, hint: str = "", before: str = "") -> Iterator[None]:
    """Say what ended a phase, with a hint and, of a second attempt, what had ended the first."""
    try:
        yield
        if values.refused and name != "build":
            raise values.refused[0]  # the workload took no notice
    except StopIteration as error:  # as a cause contextlib would take it for the error itself, and let it through
        raise DeadEndError(told(error, name)) from None
    except SystemExit as error:
        raise DeadEndError(f"{name} ends the program ({error}). Leave that out of the workload.") from error
    except Exception as error:
        if before and before != f"{type(error).__name__}: {error}":
            hint += f". The attempt before, on fake tensors, ended in {before[:_MOST_TOLD]}"
        is_refused = bool(values.refused)
        raise _kind(error, name, is_refused=is_refused)(told(error, name, is_refused=is_refused) + hint) from error


def _kind(error: Exception, phase: str, *, is_refused: bool) -> type[TraceError]:
    if isinstance(error, UnansweredError):
        return OpenBranchError
    return DeadEndError if is_own(error, phase, is_refused=is_refused) else TraceError
