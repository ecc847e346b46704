"""Inside a job on phantoms: says which module runs, and writes what held the memory at its peak."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from brim.hooking.compiled import watch_compiled
from brim.hooking.ends import before_the_end
from brim.phantom.attached.ledger import Entry, Ledger, Phase, held, tag_of

# How many entries are taken from the driver at once.
_AT_ONCE = 1 << 16
# What wrappers put before the names of the modules inside of them.
_WRAPPERS = ("_orig_mod.", "module.", "_fsdp_wrapped_module.")


class _Entry(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64),
        ("num_bytes", ctypes.c_int64),
        ("tag", ctypes.c_uint32),
        ("device", ctypes.c_int32),
    )


class Holding:
    """Follows the memory of this process, in all its devices."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        driver = ctypes.CDLL(None)
        self._open, self._tag, self._read = driver.brim_ledger_open, driver.brim_ledger_tag, driver.brim_ledger_read
        self._tag.argtypes, self._tag.restype = [ctypes.c_uint32], None
        self._read.argtypes, self._read.restype = [ctypes.c_void_p, ctypes.c_size_t], ctypes.c_int64
        self._start_anew()

    def _start_anew(self) -> None:
        self._ledgers: dict[int, Ledger] = defaultdict(Ledger)
        self._buffer: Any = None
        self._has_lost = False
        self._names: list[str] = [""]
        self._numbers: dict[int, int] = {}
        self._roots: dict[int, weakref.ref[torch.nn.Module]] = {}
        self._running: list[int] = []
        self._num_passes = self._backward_depth = 0
        self._written: tuple[int, ...] = ()

    def attach(self) -> None:
        """Register every hook."""
        self._open()
        register_module_forward_pre_hook(self._on_enter)
        register_module_forward_hook(self._on_leave, always_call=True)
        register_optimizer_step_pre_hook(self._on_optimizer)
        register_optimizer_step_post_hook(self._on_optimizer_done)
        watch_compiled(self._on_enter, self._on_leave)
        torch.autograd.backward = self._watched(torch.autograd.backward)
        torch.autograd.grad = self._watched(torch.autograd.grad)
        os.register_at_fork(after_in_child=self._start_anew)
        before_the_end(self.write)

    def write(self) -> None:
        """Write what held the memory, where it has changed."""
        self._take()
        state = tuple(each.peak_bytes + id(each.refused) for each in self._ledgers.values())
        if state == self._written:
            return
        self._mark()
        self._written = state
        path = self._folder / f"held-{os.getpid()}.json"
        temporary = path.with_suffix(".new")
        with contextlib.suppress(OSError):  # the folder goes away when brim has heard enough
            temporary.write_text(json.dumps(self._told()))
            temporary.replace(path)

    def _told(self) -> dict[str, Any]:
        how: Any = {"name_of": self._names.__getitem__, "trains": self._num_passes > 0}
        return {
            "is_whole": not self._has_lost,
            "devices": {
                index: {
                    "peak": held(each.peak, **how),
                    "refused": None
                    if each.refused is None
                    else {"asked_bytes": each.refused.num_bytes, **held(each.refused.held, **how)},
                }
                for index, each in self._ledgers.items()
            },
        }

    def _on_enter(self, module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if not self._running and not self._backward_depth:
            self._enter_root(module)
            self._mark_inputs(args)
        self._running.append(self._numbers.get(id(module), 0) or (self._running[-1] if self._running else 0))
        self._say(Phase.FORWARD)

    def _on_leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or not self._running:
            return
        self._running.pop()
        if output is None and sys.exc_info()[0] is not None:
            self.write()  # perhaps memory has run out; who catches it may go on and allocate
        if self._running:
            self._say(Phase.FORWARD)
            return
        self._say(Phase.BACKWARD if self._backward_depth else Phase.OUTSIDE)
        if not self._backward_depth and not torch.is_grad_enabled():
            self.write()

    def _on_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._take()
        self._mark()
        self._say(Phase.OPTIMIZER)

    def _on_optimizer_done(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._say(Phase.OUTSIDE)
        self._take()
        states = (value for state in optimizer.state.values() for value in _tensors(state))
        self._mark_all(states, "optimizer", "(optimizer state)")
        self.write()

    def _watched(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return a way to run the backward pass in which its blocks are known for its own."""

        def watch(*args: Any, **kwargs: Any) -> Any:
            self._backward_depth += 1
            self._num_passes += self._backward_depth == 1
            self._say(Phase.BACKWARD)
            try:
                return run(*args, **kwargs)
            except RuntimeError:
                self.write()
                raise
            finally:
                self._backward_depth -= 1
                self._say(Phase.BACKWARD if self._backward_depth else Phase.OUTSIDE)

        return watch

    def _say(self, phase: Phase) -> None:
        # What is computed anew within a backward pass is what the forward pass did not keep: as if it had.
        num_passes = self._num_passes - (phase is Phase.FORWARD and self._backward_depth > 0)
        module = self._running[-1] if self._running and phase is Phase.FORWARD else 0
        self._tag(tag_of(phase, num_passes, module))

    def _enter_root(self, root: torch.nn.Module) -> None:
        known = self._roots.get(id(root))
        if known is not None and known() is root:
            return
        self._roots[id(root)] = weakref.ref(root)
        for name, module in root.named_modules():
            for wrapper in _WRAPPERS:
                name = name.removeprefix(wrapper)
            self._numbers[id(module)] = len(self._names)
            self._names.append(name or type(module).__name__)

    def _mark_inputs(self, args: Any) -> None:
        self._take()
        self._mark_all(_tensors(args), "inputs", "(inputs)")

    def _mark(self) -> None:
        """Say which blocks are parameters and gradients."""
        for reference in list(self._roots.values()):
            root = reference()
            for module in () if root is None else root.modules():
                owner = self._names[self._numbers.get(id(module), 0)]
                own = [*module._parameters.values(), *module._buffers.values()]
                self._mark_all((each for each in own if each is not None), "parameters", owner)
                gradients = (each.grad for each in module._parameters.values() if each is not None)
                self._mark_all((each for each in gradients if each is not None), "gradients", owner)

    def _mark_all(self, tensors: Iterator[Any], kind: str, owner: str) -> None:
        for tensor in tensors:
            local = getattr(tensor, "_local_tensor", tensor)
            try:
                if local.device.type == "cuda":
                    self._ledgers[local.device.index].mark([local.untyped_storage().data_ptr()], kind, owner)
            except (RuntimeError, NotImplementedError, AttributeError):
                continue  # a tensor without a storage of its own

    def _take(self) -> None:
        """Read what the driver has noted."""
        self._buffer = self._buffer or (_Entry * _AT_ONCE)()
        count = _AT_ONCE
        while count == _AT_ONCE:
            count = self._read(self._buffer, _AT_ONCE)
            self._has_lost |= count < 0
            by_device: dict[int, list[Entry]] = defaultdict(list)
            for entry in self._buffer[: max(0, count)]:
                by_device[entry.device].append((entry.address, entry.num_bytes, entry.tag))
            for device, entries in by_device.items():
                self._ledgers[device].add(entries)


def _tensors(found: Any, depth: int = 3) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value, as far as containers are nested."""
    if isinstance(found, torch.Tensor):
        yield found
    elif depth and isinstance(found, Mapping):
        for value in found.values():
            yield from _tensors(value, depth - 1)
    elif depth and isinstance(found, (list, tuple)):
        for value in found:
            yield from _tensors(value, depth - 1)


def attach(settings: Mapping[str, Any]) -> None:
    """Follow the memory of this process, as the start-up hook asks."""
    Holding(Path(os.environ["BRIM_PHANTOM"])).attach()
