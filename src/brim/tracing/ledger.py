"""A ledger of live bytes: every storage that an operation makes, until it dies."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.autograd.graph import _engine_run_backward
from torch.utils._python_dispatch import TorchDispatchMode

from brim.tracing.backing import Backing
from brim.tracing.cudnn import workspace_of
from brim.tracing.generation import Generation
from brim.tracing.kernels import result_bytes, scratch_bytes, workspace_bytes
from brim.tracing.record import Phase, Record, Storage, Workspace
from brim.tracing.selections import PUTS, places_of, select_all
from brim.tracing.shortcuts import Shortcuts

_DEVICE_OF = torch.ops.prim.device.default
_ADD = torch.ops.aten.add.Tensor
_INDEX_PUT = torch.ops.aten.index_put.default
_AUTOGRAD_CALL = _engine_run_backward.__code__


class Ledger(TorchDispatchMode):
    """Enters every storage with its size, the phase and the module it was made in.

    Attributes:
        phase: What runs now; `backward` is found by asking autograd.
        module: The name of the module that runs now.
        live_bytes: Bytes held now.
        peak_bytes: The most that was held at once.
        num_operations: Operations seen.
        selects_all: Whether something was selected by values, and so counted whole.
        generation: Answers what transformers' generation asks; None where it does not run.
    """

    def __init__(
        self,
        backing: Backing | None = None,
        shortcuts: Shortcuts | None = None,
        *,
        capability: tuple[int, int] | None = None,
        microbatch: int = 1,
    ) -> None:
        """Start empty.

        Args:
            backing: Real memory to hold behind the fake tensors.
            shortcuts: Answers operators faster; None to ask fake tensors for all.
            capability: The compute capability of the GPU whose kernels the CPU's stand in for, so that what these keep
                for themselves is left out; None for the CPU.
            microbatch: How many samples are traced.
        """
        super().__init__()
        self.phase = Phase.BUILD
        self.module = ""
        self.live_bytes = 0
        self.peak_bytes = 0
        self.num_operations = 0
        self.selects_all = False
        self.generation: Generation | None = None
        self._backing = backing
        self._shortcuts = shortcuts
        self._capability = capability
        self._microbatch = microbatch
        self._storages: list[Storage] = []
        self._events: list[tuple[int, int]] = []
        self._step_starts: list[int] = []
        self._step_events: list[int] = []
        self._cache_drops: set[int] = set()
        self._alive: dict[int, tuple[int, int, int | None]] = {}
        self._watched: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        # The storages of a gradient and of its sum with another, and the peak before the sum was made.
        self._sum: tuple[int, int, int] | None = None

    @property
    def record(self) -> Record:
        """What has been entered so far."""
        return Record(
            storages=tuple(self._storages),
            events=tuple(_in_order(self._events, self._step_events, self._cache_drops)),
            step_starts=tuple(self._step_starts),
            step_events=tuple(self._step_events),
            cache_drops=frozenset(self._cache_drops),
        )

    def begin_step(self) -> None:
        """Note that what is made from now on belongs to the next step."""
        self._step_starts.append(len(self._storages))
        self._step_events.append(len(self._events))

    def drop_cache(self) -> None:
        """Note that torch gives all the memory that it has cached back."""
        self._sum = None
        number = len(self._storages)
        self._storages.append(Storage(num_bytes=0, phase=self.phase, module=self.module))
        self._events.append((number, 0))
        self._cache_drops.add(number)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from wrapping every call below: nothing is compiled while a ledger is kept."""
        return False

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operation and enter the storages it made."""
        if func is _DEVICE_OF:
            return args[0].fake_device if hasattr(args[0], "fake_device") else func(*args)
        kwargs = kwargs or {}
        self._sum = None
        if func in PUTS:
            self._enter_all(places_of(args[1]))
            if func is _INDEX_PUT and sys._getframe(1).f_code is _AUTOGRAD_CALL:
                # Of real tensors autograd writes the gradient of what was indexed in place.
                # Source: `index_backward` in torch's torch/csrc/autograd/FunctionsManual.cpp.
                return args[0]
        result = NotImplemented if self._shortcuts is None else self._shortcuts.run(func, args, kwargs)
        if result is NotImplemented:
            try:
                result = func(*args, **kwargs)
            except DataDependentOutputException:
                answer = None if self.generation is None else self.generation.answer(args[0])
                if answer is None:
                    raise
                return answer
            except DynamicOutputShapeException:
                result, places = select_all(func, args)
                if result is NotImplemented:
                    raise
                self.selects_all = True
                self._enter_all(places)
        self.num_operations += 1
        if isinstance(result, torch.Tensor):
            peak_before = self.peak_bytes
            self.enter(result, result_bytes(func, args))
            # Called from autograd itself, not from Python that runs in it.
            if func is _ADD and sys._getframe(1).f_code is _AUTOGRAD_CALL:
                self._expect_sum(args[0], result, peak_before)
        elif isinstance(result, (tuple, list)):
            if self._capability is None and (workspace := workspace_bytes(func, args)):
                self.enter(result[-1], workspace)
            for item in result:
                if isinstance(item, torch.Tensor):
                    self.enter(item)
                elif isinstance(item, (tuple, list)):
                    for inner in item:
                        if isinstance(inner, torch.Tensor):
                            self.enter(inner)
        if self._backing is not None:
            self._hold_for_a_moment(self._backing, scratch_bytes(func, args, result))
        taken = workspace_of(func, args, microbatch=self._microbatch, capability=self._capability)
        if taken is not None:
            self._enter_workspace(taken)
        return result

    def enter(self, tensor: torch.Tensor, num_bytes: int | None = None) -> None:
        """Enter a tensor's storage, unless it is there already."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        if num_bytes is None:
            num_bytes = storage.nbytes()
        phase = self.phase
        if phase is Phase.FORWARD and torch._C._current_graph_task_id() != -1:
            phase = Phase.BACKWARD
        number = len(self._storages)
        float_bytes = tensor.dtype.itemsize if tensor.dtype.is_floating_point else 0
        self._storages.append(Storage(num_bytes=num_bytes, phase=phase, module=self.module, float_bytes=float_bytes))
        if num_bytes:
            self._events.append((number, num_bytes))
        self._alive[key] = (number, num_bytes, self._backing.take(num_bytes) if self._backing else None)
        self._watched[key] = weakref.ref(storage, functools.partial(self._leave, key))
        self.live_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _enter_all(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            self.enter(tensor)

    def mark(self, tensor: torch.Tensor, kind: str, module: str) -> None:
        """Say what a tensor's storage is for and whose it is."""
        entry = self._alive.get(tensor.untyped_storage()._cdata)
        if entry is not None:
            number = entry[0]
            self._storages[number] = self._storages[number].marked(kind, module)

    def _expect_sum(self, gradient: torch.Tensor, result: torch.Tensor, peak_before: int) -> None:
        """Note that autograd adds two gradients of one tensor.

        It adds to the first in place if nobody else holds it and it is no view, but on fake tensors it never does. So
        the sum takes the place of a gradient that dies at once.
        Source: `can_accumulate_inplace` in torch's torch/csrc/autograd/input_buffer.cpp.
        """
        keys = gradient.untyped_storage()._cdata, result.untyped_storage()._cdata
        sizes = [self._alive[key][1] for key in keys if key in self._alive]
        if sizes == [result.nbytes] * 2 and result.nbytes and not gradient._is_view() and not torch.is_grad_enabled():
            self._sum = (*keys, peak_before)

    def _take_place(self, gradient: int, summed: int) -> None:
        number, num_bytes, address = self._alive[summed]
        self._alive[summed] = self._alive.pop(gradient)
        self._storages.pop()  # the sum's own: it was the last to be made
        birth = len(self._events) - 1
        while self._events[birth] != (number, num_bytes):  # only deaths can have followed
            birth -= 1
        del self._events[birth]
        self.live_bytes -= num_bytes
        if self._backing is not None:
            self._backing.give_back(address)

    def _leave(self, key: int, _storage: object) -> None:
        del self._watched[key]
        if self._sum is not None and self._sum[0] == key:
            gradient, summed, self.peak_bytes = self._sum
            self._sum = None
            self._take_place(gradient, summed)
            return
        number, num_bytes, address = self._alive.pop(key)
        if num_bytes:
            self._events.append((number, 0))
        self.live_bytes -= num_bytes
        if self._backing is not None:
            self._backing.give_back(address)

    def _enter_workspace(self, workspace: Workspace) -> None:
        """Enter what a library takes and gives back within an operation, after its results were made."""
        number, num_bytes = len(self._storages), workspace.at(self._microbatch)
        self._storages.append(
            Storage(num_bytes=num_bytes, phase=Phase.BACKWARD, module=self.module, workspace=workspace)
        )
        self._events += [(number, num_bytes), (number, 0)]
        self.peak_bytes = max(self.peak_bytes, self.live_bytes + num_bytes)

    def _hold_for_a_moment(self, backing: Backing, sizes: tuple[int, ...]) -> None:
        self.peak_bytes = max(self.peak_bytes, self.live_bytes + sum(sizes))
        for address in [backing.take(num_bytes) for num_bytes in sizes]:
            backing.give_back(address)


def _in_order(
    events: Sequence[tuple[int, int]], step_events: Sequence[int], cache_drops: Container[int]
) -> Iterator[tuple[int, int]]:
    """Yield the events, storages that die together in the order of their birth: theirs is an accident of addresses."""
    for start, end in pairwise((0, *step_events, len(events))):
        for _, run in groupby(events[start:end], key=lambda event: (event[1] > 0, event[0] in cache_drops)):
            yield from sorted(run)  # births are in order already
