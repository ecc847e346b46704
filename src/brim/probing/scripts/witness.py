"""Inside a process of a probed command: sets the limit, counts steps and samples, and writes a record of them.

It works through torch's global hooks, in whichever processes build or call a module with parameters. A launcher
never does, and a data loader's workers are left alone; so a record means a rank. When a rank has done its steps it
stays where it is, and brim, which reads the records of all, ends the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_parameter_registration_hook,
)
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from brim.devices.meter import Meter, make_meter
from brim.findings import Verdict
from brim.probing.scripts.samples import SampleCount
from brim.probing.sources import imported_sources
from brim.probing.verdicts import classify, describe

# How often a record is written for forward passes alone; steps and failures are written at once.
_WRITE_EVERY_SECONDS = 0.5
# A step that looks like training, but was never followed by a backward pass in so many times the steps, is none.
_PATIENCE = 2


class Witness:
    """Counts and limits the work of this process; one for each process."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._folder = Path(settings["folder"])
        self._num_wanted: int = settings["steps"]
        self._device_name: str = settings["device"]
        self._limits_bytes: list[int] = settings["limits_bytes"]
        self._start_anew()

    def _start_anew(self) -> None:
        self._meter: Meter | None = None
        self._depth = self._backward_depth = 0
        self._calls = Counter(forward=0, backward=0, optimizer=0)
        self._samples = SampleCount()
        self._num_optimizers = 0
        self._generators: set[CodeType] = set()
        self._num_steps = 0
        self._step_seconds: list[float] = []
        self._last_step = self._last_write = 0.0
        self._failure: dict[str, Any] | None = None

    def attach(self) -> None:
        """Register every hook; the first parameter of the process starts the watch."""
        register_module_parameter_registration_hook(self._on_parameter)
        register_module_forward_pre_hook(self._on_enter)
        register_module_forward_hook(self._on_leave, always_call=True)
        register_optimizer_step_post_hook(self._on_optimizer_step)
        torch.autograd.backward = self._watched(torch.autograd.backward)
        torch.autograd.grad = self._watched(torch.autograd.grad)
        self._count_optimizers()
        self._watch_exceptions()
        os.register_at_fork(after_in_child=self._on_fork)

    def _on_fork(self) -> None:
        """A forked process is no rank before it works like one, and a data loader's worker has no limit."""
        if self._meter is not None:
            self._meter.lift()
        self._start_anew()

    def _begin(self, device: torch.device) -> None:
        """Set the limit; on CUDA only when the first module is called, as nobody knows the device before."""
        if self._device_name != "cpu" and device.type != "cuda":
            return
        name = "cpu" if self._device_name == "cpu" else f"cuda:{device.index or 0}"
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self._meter = make_meter(name)
        self._meter.limit(self._limits_bytes[min(local_rank, len(self._limits_bytes) - 1)])
        self._write("running")

    def _on_parameter(self, module: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> None:
        if self._meter is None and parameter is not None and _is_rank():
            self._begin(parameter.device)

    def _on_enter(self, module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return  # inside a compiled module, which is an outermost one itself
        self._depth += 1
        if self._depth > 1 or self._backward_depth or not _is_rank():
            return
        parameter = next(module.parameters(), None)
        if parameter is None:
            return  # a transform or a loss
        if self._meter is None:
            self._begin(parameter.device)
        self._last_step = self._last_step or time.perf_counter()
        self._watch_generation()

    def _on_leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._depth -= 1
        if self._depth or self._backward_depth or self._meter is None or not _is_rank():
            return
        if next(module.parameters(), None) is None:
            return
        error = sys.exc_info()[1]
        if error is not None and output is None:
            self._note_oom(error)
            return
        self._calls["forward"] += 1
        self._samples.add(id(module), args, output)
        if self._generators or self._num_optimizers or self._calls["backward"]:
            self._write_now_and_then()
        elif not _expects_backward(module) or self._calls["forward"] >= _PATIENCE * self._num_wanted:
            self._end_step()

    def _on_optimizer_step(self, *_: Any) -> None:
        if self._meter is not None:
            self._calls["optimizer"] += 1
            self._end_step()

    def _watched(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def watch(*args: Any, **kwargs: Any) -> Any:
            self._backward_depth += 1
            try:
                result = run(*args, **kwargs)
            except Exception as error:
                self._note_oom(error)
                raise
            finally:
                self._backward_depth -= 1
            if self._meter is not None and not self._backward_depth:
                self._calls["backward"] += 1
                if not self._num_optimizers:
                    self._end_step()  # a loop that updates its weights by hand
            return result

        return watch

    def _count_optimizers(self) -> None:
        """See optimizers made, so that a validation before the first training step is not taken for the job."""
        make = Optimizer.__init__

        def count_and_make(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            self._num_optimizers += 1
            make(optimizer, *args, **kwargs)

        Optimizer.__init__ = count_and_make  # type: ignore[method-assign, assignment]

    def _watch_generation(self) -> None:
        """Where a module is called inside somebody's `generate`, make that whole call a step."""
        frame = sys._getframe(2)
        outermost = None
        while frame.f_back is not None:
            frame = frame.f_back
            if frame.f_code.co_name == "generate":
                outermost = frame
        if outermost is None or outermost.f_code in self._generators:
            return
        owner = next(iter(outermost.f_locals.values()), None)
        self._generators.add(outermost.f_code)
        generate = getattr(type(owner), "generate", None)
        if generate is None:
            return
        # The call that is under way has ended when the next one begins.
        is_first = True

        def count_and_generate(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_first
            if is_first:
                is_first = False
                self._end_step()
            result = generate(*args, **kwargs)
            self._end_step()
            return result

        setattr(type(owner), "generate", count_and_generate)  # noqa: B010  the class is the user's

    def _end_step(self) -> None:
        assert self._meter is not None
        self._meter.synchronize()
        now = time.perf_counter()
        self._num_steps += 1
        self._step_seconds.append(now - self._last_step)
        self._last_step = now
        is_done = self._num_steps >= self._num_wanted
        self._write("done" if is_done else "running")
        if is_done:
            sys.stdout.flush()
            sys.stderr.flush()
            threading.Event().wait()  # brim ends the whole job, this process with it

    def _note_oom(self, error: BaseException) -> None:
        """Remember an OOM, whoever catches it then: a script that goes on with less has not run this microbatch."""
        if self._failure is None and self._meter is not None and self._classify(error) is Verdict.OOM:
            self._fail(error, "step")

    def _watch_exceptions(self) -> None:
        show = sys.excepthook

        def note_and_show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if self._meter is not None and self._failure is None and not isinstance(error, KeyboardInterrupt):
                self._fail(error, "step" if self._calls["forward"] else "build")
            show(kind, error, trace)

        sys.excepthook = note_and_show

    def _classify(self, error: BaseException) -> Verdict:
        assert self._meter is not None
        return classify(error, nearly_full=self._meter.is_nearly_full)

    def _fail(self, error: BaseException, phase: str) -> None:
        assert self._meter is not None
        verdict = self._classify(error)
        self._meter.lift()  # the report needs memory too
        self._failure = {"verdict": verdict.value, "detail": describe(error), "phase": phase, "time": time.time()}
        if verdict is Verdict.ERROR:
            self._failure["traceback"] = "".join(traceback.format_exception(error))
        self._write("failed")

    def _write_now_and_then(self) -> None:
        if time.monotonic() - self._last_write > _WRITE_EVERY_SECONDS:
            self._write("running")

    def _write(self, status: str) -> None:
        """Write the record of this process so that a reader never sees half of it."""
        assert self._meter is not None
        self._last_write = time.monotonic()
        memory = self._meter.peaks()
        record = {
            "status": status,
            "pid": os.getpid(),
            "rank": _rank(),
            "num_ranks": _num_ranks(),
            "kind": self._kind(),
            "steps": self._num_steps,
            "step_seconds": statistics.median(self._step_seconds[1:] or self._step_seconds or [0.0]),
            "peak_bytes": memory.pop("peak_bytes"),
            "memory": memory,
            "calls": dict(self._calls),
            **self._samples.to_dict(),
            "failure": self._failure,
            "sources": _sources() if status != "running" or self._num_steps == 1 else {},
        }
        path = self._folder / f"{os.getpid()}.json"
        temporary = path.with_suffix(".new")
        with contextlib.suppress(OSError):  # the folder goes away when brim has heard enough
            temporary.write_text(json.dumps(record))
            temporary.replace(path)

    def _kind(self) -> str:
        if self._generators:
            return "generate"
        return "train" if self._calls["optimizer"] or self._calls["backward"] else "eval"


def _is_rank() -> bool:
    return torch.utils.data.get_worker_info() is None


def _expects_backward(module: torch.nn.Module) -> bool:
    return (
        module.training
        and torch.is_grad_enabled()
        and any(parameter.requires_grad for parameter in module.parameters())
    )


def _rank() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", "0"))


def _num_ranks() -> int:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1"))


def _sources() -> dict[str, str]:
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return imported_sources(Path(script)) if script else {}
