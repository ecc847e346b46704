"""Probes of a loop that runs by itself, in this process: it is ended once it has taken enough steps."""

from __future__ import annotations

import itertools
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from brim.cases import Case
from brim.devices import Device, make_meter
from brim.findings import Race, Verdict
from brim.probing.in_process import release_memory
from brim.probing.mixing import Mix
from brim.probing.outcome import Outcome, Traced, outcome_from
from brim.probing.snapshot import restored
from brim.probing.trial import run_trial
from brim.workload import Workload


class _EnoughError(BaseException):
    """Ends a loop from inside; no `except Exception` of the loop holds it up."""


class LoopProber:
    """Calls a loop with a microbatch, ends it after a few steps, and leaves the process as it was.

    A step is an optimizer's step for the kind `train`, else a forward pass of an outermost module.

    Args:
        loop: Runs with the microbatch it is given, for as long as it likes.
        device: What it must fit into.
        kind: `train`, `eval` or `generate`.
        ends_itself: Whether the loop knows by itself when it has shown enough.
        changes_models: Whether models have to be put back; keeping a copy of them takes time and the host's memory.

    Attributes:
        failure: What the loop raised in the last probe, where it was an error other than memory; else None.
    """

    def __init__(
        self,
        loop: Callable[[int], object],
        device: Device,
        *,
        kind: str = "train",
        ends_itself: bool = False,
        changes_models: bool = True,
    ) -> None:
        self._loop = loop
        self._device = device
        self._kind = kind
        self._ends_itself = ends_itself
        self._changes_models = changes_models
        self.failure: BaseException | None = None

    @property
    def kind(self) -> str:
        """What a step of the loop does."""
        return self._kind

    @property
    def ranks(self) -> int:
        """One: this process."""
        return 1

    def probe(
        self,
        case: Case,
        microbatch: int,
        *,
        steps: int,
        confirms: bool = False,
        mix: Mix = (),
        race: Race | None = None,
    ) -> Outcome:
        """Run the loop until it has taken `steps` steps, or has come to its end before that."""
        assert not mix, "a loop draws its own lengths"
        assert race is None, "a loop has one size"
        meter = make_meter(self._device.name)
        watch = _StepWatch(self._kind, None if self._ends_itself else steps, meter.synchronize)
        workload_class = _as_workload(self._run_loop, self._kind, watch)
        self.failure = None
        with restored() if self._changes_models else torch.random.fork_rng():
            release_memory()
            result = run_trial(
                workload_class, case, microbatch, steps=1, meter=meter, limit_bytes=self._device.limit_bytes
            )
            if result["verdict"] != Verdict.ERROR.value:
                self.failure = None  # its traceback holds what the loop had allocated; putting back needs room
        release_memory()
        if result["verdict"] == Verdict.FITS.value:
            result |= {"steps": watch.num_steps, "samples": watch.num_steps * microbatch}
            # What a loop does besides its steps is no time of a step.
            timings = () if self._ends_itself else watch.timings
            result |= {"timings": timings, "step_seconds": statistics.median(timings) if timings else None}
        return outcome_from(microbatch, result, sources={})

    def trace(self, case: Case, *, cap: int, steps: int) -> Traced:
        """Refuse: a loop with data of its own cannot run on fake tensors."""
        return Traced(problem="the loop runs beside live tensors")

    def close(self) -> None:
        """Do nothing: no process was started."""

    def _run_loop(self, microbatch: int) -> None:
        try:
            self._loop(microbatch)
        except (Exception, SystemExit) as error:
            self.failure = error
            raise


class _StepWatch:
    """Counts and times the steps of a loop, and ends it."""

    def __init__(self, kind: str, most_steps: int | None, synchronize: Callable[[], None]) -> None:
        self._kind = kind
        self._most_steps = most_steps
        self._synchronize = synchronize
        self._counts: Counter[int] = Counter()
        self._moments: list[float] = []

    @property
    def num_steps(self) -> int:
        """Steps of the optimizer that took the most."""
        return max(self._counts.values(), default=0)

    @property
    def timings(self) -> tuple[float, ...]:
        """The times from one step to the next."""
        return tuple(later - earlier for earlier, later in itertools.pairwise(self._moments))

    @property
    def _is_enough(self) -> bool:
        return self._most_steps is not None and self.num_steps >= self._most_steps

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the block and end it after the last step."""
        depth = 0

        def enter(*_: Any) -> None:
            nonlocal depth
            if depth == 0 and self._kind != "train" and self._is_enough:
                raise _EnoughError
            depth += 1

        def leave(*_: Any) -> None:
            nonlocal depth
            depth -= 1
            if depth == 0 and self._kind != "train":
                self._count(0)

        def step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            self._count(id(optimizer))
            if self._kind == "train" and self._is_enough:
                raise _EnoughError

        with ExitStack() as stack:
            for handle in (
                register_module_forward_pre_hook(enter),
                register_module_forward_hook(leave, always_call=True),
                register_optimizer_step_post_hook(step),
            ):
                stack.callback(handle.remove)
            with suppress(_EnoughError):
                yield

    def _count(self, of: int) -> None:
        self._counts[of] += 1
        if self._counts[of] == self.num_steps:
            self._synchronize()
            self._moments.append(time.perf_counter())


@contextmanager
def ranks_apart() -> Iterator[None]:
    """Let every rank compute alone: no DDP model exchanges its gradients in the block.

    A rank that runs out of memory alone would otherwise leave the others waiting for its gradients.
    """
    with ExitStack() as stack:
        seen: set[int] = set()

        def stop_exchange(module: torch.nn.Module, args: Any) -> None:
            if isinstance(module, DistributedDataParallel) and id(module) not in seen:
                seen.add(id(module))
                stack.enter_context(module.no_sync())

        stack.callback(register_module_forward_pre_hook(stop_exchange).remove)
        yield


def _as_workload(loop: Callable[[int], object], loop_kind: str, watch: _StepWatch) -> type[Workload]:
    class Loop(Workload):
        kind = loop_kind

        def build(self) -> None:
            """Do nothing: the loop builds what it needs."""

        def batch(self, size: int) -> int:
            return size

        def step(self, batch: int) -> None:
            with ranks_apart(), watch.watching():
                loop(batch)

    return Loop
