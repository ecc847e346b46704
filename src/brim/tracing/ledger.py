"""A ledger of live bytes: every storage that an operation makes, until it dies."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import groupby, pairwise
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.autograd.graph import _engine_run_backward
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from brim.tracing.attention import backward_scratch
from brim.tracing.backing import Backing
from brim.tracing.cudnn import workspace_of
from brim.tracing.decoding import Tokens
from brim.tracing.generation import Generation
from brim.tracing.kernels import (
    batch_norm_scratch,
    operand_copies,
    result_bytes,
    scratch_bytes,
    softmax_scratch,
    workspace_bytes,
)
from brim.tracing.origins import Origins
from brim.tracing.places import GPU, Places
from brim.tracing.record import Phase, Record, Storage, Workspace
from brim.tracing.selections import PUTS, places_of, select_all
from brim.tracing.shortcuts import Shortcuts
from brim.tracing.unknown import Values

_DEVICE_OF = torch.ops.prim.device.default
_ADD = torch.ops.aten.add.Tensor
_INDEX_PUT = torch.ops.aten.index_put.default
_TO_COPY = torch.ops.aten._to_copy.default
# After how many operations a long trace says that it goes on: two seconds or so.
_TOLD_OPERATIONS = 16_384
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
        has_recurrence: Whether a recurrent layer ran.
        token_stride: Of how many tokens of a long generation one is entered.
        generation: Answers what transformers' generation asks; None where it does not run.
        values: Remembers what was refused.
    """

    def __init__(
        self,
        backing: Backing | None = None,
        shortcuts: Shortcuts | None = None,
        *,
        capability: tuple[int, int] | None = None,
        microbatch: int = 1,
        places: Places | None = None,
        tell: Callable[[int], None] | None = None,
    ) -> None:
        """Start empty.

        Args:
            backing: Real memory to hold behind the fake tensors.
            shortcuts: Answers operators faster; None to ask fake tensors for all.
            capability: The compute capability of the GPU whose kernels the CPU's stand in for, so that what these keep
                for themselves is left out; None for the CPU.
            microbatch: How many samples are traced.
            places: Knows what is on the GPU, and so entered; None to enter all.
            tell: Called with the number of operations every now and then.
        """
        super().__init__()
        self.phase = Phase.BUILD
        self.module = ""
        self.live_bytes = 0
        self.peak_bytes = 0
        self.num_operations = 0
        self.selects_all = False
        self.has_recurrence = False
        self.token_stride = 1
        self.generation: Generation | None = None
        self.values = Values()
        self._backing = backing
        self._shortcuts = shortcuts
        self._capability = capability
        self._microbatch = microbatch
        self._tell = tell
        self._storages: list[Storage] = []
        self._events: list[tuple[int, int]] = []
        self._step_starts: list[int] = []
        self._step_events: list[int] = []
        self._cache_drops: set[int] = set()
        self._alive: dict[int, tuple[int, int, int | None]] = {}
        self._places = places
        if places is not None:
            places.held = self._alive
        self._watched: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        # The storages of a gradient and of its sum with another, and the peak before the sum was made.
        self._sum: tuple[int, int, int] | None = None
        self._origins = Origins()
        self._tokens: Tokens | None = None

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
        self._origins.clear()
        self._step_starts.append(len(self._storages))
        self._step_events.append(len(self._events))

    def begin_tokens(self) -> None:
        """Note that a generation begins, which decodes one token after the other."""
        self._tokens = Tokens(self._storages, self._events) if self._backing is None else None

    def end_token(self) -> bool:
        """Note that a token is decoded, and return whether all that follow are known by those before."""
        if self._tokens is None:
            return False
        self._tokens.end_token()
        return self._tokens.period() is not None

    def add_tokens(self, num_tokens: int) -> None:
        """Enter tokens that are known by those before; what lives on is what the last of them made."""
        assert self._tokens is not None
        self.token_stride = max(self.token_stride, self._tokens.stride(num_tokens))
        heirs = self._tokens.add(num_tokens)
        for key, (number, _, address) in list(self._alive.items()):
            if number in heirs:
                self._alive[key] = (heirs[number], self._storages[heirs[number]].num_bytes, address)
        self.live_bytes = sum(num_bytes for _, num_bytes, _ in self._alive.values())
        self.peak_bytes = max(self.peak_bytes, self.record.peak()[0])
        self._tokens = None

    def run_module(self, name: str) -> None:
        """Note that a module runs from now on."""
        self.module = name
        self._origins.enter(name)

    def drop_cache(self) -> None:
        """Note that torch gives all the memory that it has cached back."""
        self._sum = None
        number = len(self._storages)
        self._storages.append(Storage(num_bytes=0, phase=self.phase, module=self.module))
        self._events.append((number, 0))
        self._cache_drops.add(number)

    @contextmanager
    def of_real_tensors(self) -> Iterator[None]:
        """Know which real tensors are on the GPU, outside of all other modes; on the CPU none is entered twice."""
        shortcuts, self._shortcuts = self._shortcuts, None
        try:
            with _disable_current_modes(), nullcontext() if self._places is None else self:
                yield
        finally:
            self._shortcuts = shortcuts

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
        # Called by autograd: the frame is its own, not that of Python that runs in it.
        by_autograd = sys._getframe(1).f_code is _AUTOGRAD_CALL
        with torch._C.DisableTorchFunction():  # what is made in here is nobody's business
            return self._run(func, args, kwargs or {}, by_autograd=by_autograd)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, by_autograd: bool) -> Any:
        self._sum = None
        is_counted = True
        if self._places is not None:
            self._places.check(func, args)
            is_counted = self._places.is_made_on_gpu(args, kwargs)
        if func in PUTS:
            if is_counted:
                self._enter_all(places_of(args[1]))
            if func is _INDEX_PUT and by_autograd:
                # Of real tensors autograd writes the gradient of what was indexed in place.
                # Source: `index_backward` in torch's torch/csrc/autograd/FunctionsManual.cpp.
                return args[0]
        result = NotImplemented if self._shortcuts is None else self._shortcuts.run(func, args, kwargs)
        if result is NotImplemented:
            try:
                result = func(*args, **kwargs)
            except DataDependentOutputException as error:
                answer = None if self.generation is None else self.generation.answer(args[0])
                if answer is None:
                    self.values.refuse(error)
                return answer
            except DynamicOutputShapeException:
                result, places = select_all(func, args)
                if result is NotImplemented:
                    raise
                self.selects_all = True
                if is_counted:
                    self._enter_all(places)
        self.num_operations += 1
        if self._tell is not None and self.num_operations % _TOLD_OPERATIONS == 0:
            self._tell(self.num_operations)
        if self._places is not None and (not is_counted or (args and result is args[0])):
            return result  # on the host, or written in place
        if isinstance(result, torch.Tensor):
            peak_before = self.peak_bytes
            self.enter(result, result_bytes(func, args), kind="inputs" if self._is_moved(func) else None)
            if func is _ADD and by_autograd:
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
        self._take_for_a_moment(operand_copies(func, args))
        if self._capability is None:
            self._take_for_a_moment(batch_norm_scratch(func, args))
        else:
            for moment in (softmax_scratch(func, args), *backward_scratch(func, args)):
                self._take_for_a_moment(moment)
        taken = workspace_of(func, args, microbatch=self._microbatch, capability=self._capability)
        if taken is not None:
            self._enter_workspace(taken)
        return result

    def enter(self, tensor: torch.Tensor, num_bytes: int | None = None, *, kind: str | None = None) -> None:
        """Enter a tensor's storage, unless it is there already."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        if num_bytes is None:
            num_bytes = storage.nbytes()
        phase = self._current_phase()
        number = len(self._storages)
        self._storages.append(
            Storage(
                num_bytes=num_bytes,
                phase=phase,
                module=self.module,
                kind=kind,
                float_bytes=tensor.dtype.itemsize if tensor.dtype.is_floating_point else 0,
                origin=self._origins.current() if phase is Phase.BACKWARD else "",
            )
        )
        if num_bytes:
            self._events.append((number, num_bytes))
        self._alive[key] = (number, num_bytes, self._backing.take(num_bytes) if self._backing else None)
        self._watched[key] = weakref.ref(storage, functools.partial(self._leave, key))
        self.live_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def hand_over(self, tensor: torch.Tensor, successor: torch.Tensor) -> None:
        """Let another tensor take the place of one that is entered, as if it had been there from the start."""
        key, storage = tensor.untyped_storage()._cdata, successor.untyped_storage()
        if key in self._alive:
            del self._watched[key]
            self._alive[storage._cdata] = self._alive.pop(key)
            self._watched[storage._cdata] = weakref.ref(storage, functools.partial(self._leave, storage._cdata))

    def _current_phase(self) -> Phase:
        in_backward = self.phase is Phase.FORWARD and torch._C._current_graph_task_id() != -1
        return Phase.BACKWARD if in_backward else self.phase

    def _is_moved(self, func: Any) -> bool:
        """Return whether an operator of the forward pass brings something from the host to the GPU."""
        wanted = None if self._places is None else self._places.wanted
        return wanted == GPU and func is _TO_COPY and self._current_phase() is Phase.FORWARD

    def _enter_all(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            self.enter(tensor)

    def mark(self, tensor: torch.Tensor, kind: str, module: str) -> None:
        """Say what a tensor's storage is for and whose it is."""
        entry = self._alive.get(tensor.untyped_storage()._cdata)
        if entry is not None:
            number = entry[0]
            self._storages[number] = self._storages[number].marked(kind, module)

    def is_given(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor was made by no module in its forward pass, as far as that is known."""
        entry = self._alive.get(tensor.untyped_storage()._cdata)
        storage = None if entry is None else self._storages[entry[0]]
        return storage is None or storage.phase is not Phase.FORWARD or not storage.module

    def module_of(self, tensor: torch.Tensor) -> str:
        """Return whose a tensor's storage is."""
        entry = self._alive.get(tensor.untyped_storage()._cdata)
        return "" if entry is None else self._storages[entry[0]].module

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

    def _take_for_a_moment(self, sizes: Sequence[int]) -> None:
        """Enter what a kernel takes and gives back before it ends."""
        if not sizes:
            return
        phase, numbers = self._current_phase(), range(len(self._storages), len(self._storages) + len(sizes))
        origin = self._origins.current() if phase is Phase.BACKWARD else ""
        self._storages += [
            Storage(num_bytes=num_bytes, phase=phase, module=self.module, origin=origin) for num_bytes in sizes
        ]
        self._events += [*zip(numbers, sizes, strict=True), *((number, 0) for number in numbers)]
        self.peak_bytes = max(self.peak_bytes, self.live_bytes + sum(sizes))
        if self._backing is not None:
            self._hold_for_a_moment(self._backing, tuple(sizes))

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
