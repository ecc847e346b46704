"""Inside a process of a probed command: sets the limit, counts steps and samples, and writes a record of them.

It works through torch's global hooks, in whichever processes build or call a module with parameters. A launcher
never does, and a data loader's workers are left alone; so a record means a rank. When a rank has done its steps it
stays where it is, and brim, which reads the records of all, ends the job.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
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
from brim.hooking.compiled import watch_compiled
from brim.hooking.ends import prepare_for_the_end
from brim.probing.scripts.generation import GenerateWatch
from brim.probing.scripts.graphs import ReplayWatch
from brim.probing.scripts.records import write_record
from brim.probing.scripts.tally import Tally
from brim.probing.sources import imported_sources
from brim.probing.verdicts import bounded, classify, describe, line_of

# How often a record is written for forward passes alone; steps and failures are written at once.
_WRITE_EVERY_SECONDS = 0.5
# What looks like training, but was not followed by a backward pass in so many times the steps, is none.
_PATIENCE = 2


def attach(settings: Mapping[str, Any]) -> None:
    """Watch this process, as the start-up hook asks."""
    Witness(settings).attach()


class Witness:
    """Counts and limits the work of this process."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._folder = Path(settings["folder"])
        self._num_wanted: int = settings["steps"]
        self._device_name: str = settings["device"]
        self._limits_bytes: list[int] = settings["limits_bytes"]
        self._generation = GenerateWatch(self._end_step)
        self._replays = ReplayWatch(self._end_step, is_outside=lambda: not self._depth and not self._backward_depth)
        self._start_anew()

    def _start_anew(self) -> None:
        self._meter: Meter | None = None
        self._tally = Tally()
        self._depth = self._backward_depth = 0
        self._last_write = 0.0
        self._failure: dict[str, Any] | None = None

    def attach(self) -> None:
        """Register every hook; the first parameter of the process starts the watch."""
        register_module_parameter_registration_hook(self._on_parameter)
        register_module_forward_pre_hook(self._on_enter)
        register_module_forward_hook(self._on_leave, always_call=True)
        register_optimizer_step_post_hook(self._on_optimizer_step)
        watch_compiled(self._on_enter, self._on_leave)
        self._replays.attach()
        # Tensor.backward looks both up here at every call.
        torch.autograd.backward = self._watched(torch.autograd.backward)
        torch.autograd.grad = self._watched(torch.autograd.grad)
        self._count_optimizers()
        self._watch_exceptions()
        os.register_at_fork(after_in_child=self._on_fork)
        atexit.register(self._on_exit)

    def _on_fork(self) -> None:
        """A forked process is no rank before it works like one, and a data loader's worker has no limit."""
        if self._meter is not None and self._device_name == "cpu":
            self._meter.lift()  # of CUDA's nothing is left in a forked process, nor can anything be asked of it
        self._start_anew()

    def _on_exit(self) -> None:
        if self._meter is not None and self._failure is None:
            self._write("ended")

    def _begin(self, device: torch.device) -> None:
        """Set the limit; on CUDA only when a parameter is there, as nobody knows the device before."""
        if self._device_name != "cpu" and device.type != "cuda":
            return
        self._meter = make_meter("cpu" if self._device_name == "cpu" else f"{self._device_name}:{device.index or 0}")
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        try:
            self._meter.limit(self._limits_bytes[min(local_rank, len(self._limits_bytes) - 1)])
        except MemoryError as error:
            self._fail(error)
        else:
            self._write("running")

    def _on_parameter(self, module: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> None:
        if self._meter is None and parameter is not None and _is_rank():
            self._begin(parameter.device)

    def _on_enter(self, module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return  # inside a compiled module, which is an outermost one itself
        self._depth += 1
        if not self._counts(module, depth=1):
            return
        if self._meter is None:
            self._begin(next(module.parameters()).device)
        if self._meter is None:
            return  # a module on the CPU, before the GPU is used
        if self._tally.begin_step():
            self._write("running")  # should it hang, brim knows who had begun
        self._tally.is_generating |= self._generation.look()

    def _on_leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._depth -= 1
        if self._meter is None or not self._counts(module, depth=0):
            return
        error = sys.exc_info()[1]
        if error is not None and output is None:
            self._note_oom(error)
            return
        is_training = _expects_backward(module)
        self._tally.add_forward(id(module), args, output, is_training=is_training)
        calls = self._tally.calls
        if self._tally.is_generating or self._tally.num_optimizers or calls["backward"]:
            if time.monotonic() - self._last_write > _WRITE_EVERY_SECONDS:
                self._write("running")
        elif not is_training or calls["forward"] >= _PATIENCE * self._num_wanted:
            self._end_step()

    def _counts(self, module: torch.nn.Module, *, depth: int) -> bool:
        """Return whether this is an outermost call, and not of a transform, a loss or a recomputation."""
        if self._depth != depth or self._backward_depth or not _is_rank():
            return False
        return next(module.parameters(), None) is not None

    def _on_optimizer_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        device = optimizer.param_groups[0]["params"][0].device
        if self._meter is None and _is_rank():
            self._begin(device)  # the model's calls were not seen: they are inside a compiled function
        if self._meter is None or not self._replays.counts(device):
            return
        if self._tally.add_optimizer_step(id(optimizer)):
            self._end_step()

    def _watched(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a way to run the backward pass that counts it and sees it fail."""

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
                self._tally.calls["backward"] += 1
                if not self._tally.num_optimizers:
                    self._end_step()  # a loop that updates its weights by hand
            return result

        return watch

    def _count_optimizers(self) -> None:
        """See optimizers made, so that a validation before the first training step is not taken for the job."""
        make = Optimizer.__init__

        def count_and_make(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            self._tally.num_optimizers += 1
            make(optimizer, *args, **kwargs)

        Optimizer.__init__ = count_and_make  # type: ignore[method-assign, assignment]

    def _watch_exceptions(self) -> None:
        show = sys.excepthook

        def note_and_show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if self._meter is not None and self._failure is None and not isinstance(error, KeyboardInterrupt):
                self._fail(error)
            show(kind, error, trace)

        sys.excepthook = note_and_show

    def _end_step(self) -> None:
        if self._meter is None:
            return
        self._meter.synchronize()
        self._tally.end_step()
        if self._tally.num_steps < self._num_wanted:
            self._write("running")
            return
        sys.stdout.flush()
        sys.stderr.flush()
        prepare_for_the_end()
        self._write("done")
        threading.Event().wait()  # brim ends the whole job, this process with it

    def _note_oom(self, error: BaseException) -> None:
        """Remember an OOM, whoever catches it then: a script that goes on with less has not run this microbatch."""
        if self._meter is not None and self._failure is None and self._classify(error) is Verdict.OOM:
            self._fail(error)

    def _classify(self, error: BaseException) -> Verdict:
        assert self._meter is not None
        return classify(error, nearly_full=self._meter.is_nearly_full)

    def _fail(self, error: BaseException) -> None:
        assert self._meter is not None
        verdict = self._classify(error)
        self._meter.lift()  # the report needs memory too
        self._failure = {"verdict": verdict.value, "detail": describe(error)}
        self._failure |= {"phase": self._tally.phase, "time": time.time(), "line": line_of(error)}
        if verdict is Verdict.ERROR:
            self._failure["traceback"] = bounded("".join(traceback.format_exception(error)))
        self._write("failed")

    def _write(self, status: str) -> None:
        assert self._meter is not None
        self._last_write = time.monotonic()
        memory = self._meter.peaks()
        record = {
            "status": status,
            "pid": os.getpid(),
            "rank": rank_here(),
            "num_ranks": num_ranks_here(),
            "peak_bytes": memory.pop("peak_bytes"),
            "memory": memory,
            **self._tally.to_dict(),
            "failure": self._failure,
            "sources": {} if status == "running" else _sources(),
        }
        write_record(self._folder, record)


def _is_rank() -> bool:
    return torch.utils.data.get_worker_info() is None


def _expects_backward(module: torch.nn.Module) -> bool:
    is_trained = any(parameter.requires_grad for parameter in module.parameters())
    return module.training and torch.is_grad_enabled() and is_trained


def rank_here() -> int:
    """Return which data-parallel process this is."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", "0"))


def num_ranks_here() -> int:
    """Return how many of them there are."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1"))


def _sources() -> dict[str, str]:
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return imported_sources(Path(script)) if script else {}
