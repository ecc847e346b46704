"""A ledger of live bytes: every storage from its birth to its death."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Container, Iterator, Sequence
from itertools import groupby, pairwise

import torch

from brim.tracing.backing import Backing
from brim.tracing.decoding import Tokens
from brim.tracing.origins import Origins
from brim.tracing.record import Phase, Record, Storage, Workspace
from brim.tracing.scratch import Scratch


class Ledger:
    """Storages with their sizes, each with the phase and the module it was made in.

    Attributes:
        phase: What runs now; `backward` is found by asking autograd.
        module: The name of the module that runs now.
        live_bytes: Bytes held now.
        peak_bytes: The most that was held at once.
        token_stride: Of how many tokens of a long generation one is entered.
        alive: What is held now, by torch's own address of the storage: its number in the ledger, its bytes, and where
            the memory behind it is.
    """

    def __init__(self, backing: Backing | None = None) -> None:
        """Start empty, with real memory to hold behind what is entered, if any."""
        self.phase = Phase.BUILD
        self.module = ""
        self.live_bytes = 0
        self.peak_bytes = 0
        self.token_stride = 1
        self._backing = backing
        self._storages: list[Storage] = []
        self._events: list[tuple[int, int]] = []
        self._step_starts: list[int] = []
        self._step_events: list[int] = []
        self._cache_drops: set[int] = set()
        # By whether it is autograd's thread: each has a workspace of cuBLAS of its own.
        self._blas_starts: dict[bool, int] = {}
        self.alive: dict[int, tuple[int, int, int | None]] = {}
        self._watched: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        # The storages of a gradient and of its sum with another, and the peak before the sum was made.
        self._sum: tuple[int, int, int] | None = None
        self._origins = Origins()
        self._tokens: Tokens | None = None

    @property
    def is_backed(self) -> bool:
        """Whether real memory is held behind what is entered."""
        return self._backing is not None

    @property
    def record(self) -> Record:
        """What has been entered so far."""
        return Record(
            storages=tuple(self._storages),
            events=tuple(_in_order(self._events, self._step_events, {*self._cache_drops, *self._blas_starts.values()})),
            step_starts=tuple(self._step_starts),
            step_events=tuple(self._step_events),
            cache_drops=frozenset(self._cache_drops),
            blas_starts=tuple(self._blas_starts.values()),
        )

    def begin_anew(self) -> None:
        """Forget what was entered, unless some of it is still held."""
        if not self.alive:
            self._storages.clear()
            self._events.clear()
            self._cache_drops.clear()
            self._blas_starts.clear()
            self.peak_bytes = 0

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
        for key, (number, _, address) in list(self.alive.items()):
            if number in heirs:
                self.alive[key] = (heirs[number], self._storages[heirs[number]].num_bytes, address)
        self.live_bytes = sum(num_bytes for _, num_bytes, _ in self.alive.values())
        self.peak_bytes = max(self.peak_bytes, self.record.peak()[0])
        self._tokens = None

    def run_module(self, name: str) -> None:
        """Note that a module runs from now on."""
        self.module = name
        self._origins.enter(name)

    def drop_cache(self) -> None:
        """Note that torch gives all the memory that it has cached back."""
        self._end_sum()
        self._cache_drops.add(self._enter_moment())

    def use_blas(self) -> None:
        """Note that cuBLAS runs."""
        in_backward = self.current_phase() is Phase.BACKWARD
        if in_backward not in self._blas_starts:
            self._blas_starts[in_backward] = self._enter_moment()

    def _enter_moment(self) -> int:
        """Enter a storage without memory, which stands for the moment at which it dies."""
        number = len(self._storages)
        self._storages.append(Storage(num_bytes=0, phase=self.phase, module=self.module))
        self._events.append((number, 0))
        return number

    def enter(
        self,
        tensor: torch.Tensor,
        num_bytes: int | None = None,
        *,
        kind: str | None = None,
        in_place_of: torch.Tensor | None = None,
    ) -> None:
        """Enter a tensor's storage, unless it is there already.

        Args:
            tensor: Whose storage.
            num_bytes: How large it is; None for as large as it says.
            kind: What it is for; None for what its phase tells.
            in_place_of: A gradient whose place it takes if that dies at once; None for a place of its own.
        """
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.alive:
            return
        if num_bytes is None:
            num_bytes = storage.nbytes()
        phase = self.current_phase()
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
        self._watched[key] = weakref.ref(storage, functools.partial(self._leave, key))
        self.alive[key] = (number, num_bytes, None)
        if in_place_of is not None and self._may_take_place(in_place_of, tensor):
            self._sum = (in_place_of.untyped_storage()._cdata, key, self.peak_bytes)
        else:
            self._back(key)
        self.live_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def hand_over(self, tensor: torch.Tensor, successor: torch.Tensor) -> None:
        """Let another tensor take the place of one that is entered, as if it had been there from the start."""
        key, storage = tensor.untyped_storage()._cdata, successor.untyped_storage()
        if key in self.alive:
            del self._watched[key]
            self.alive[storage._cdata] = self.alive.pop(key)
            self._watched[storage._cdata] = weakref.ref(storage, functools.partial(self._leave, storage._cdata))

    def mark(self, tensor: torch.Tensor, kind: str, module: str) -> None:
        """Say what a tensor's storage is for and whose it is."""
        entry = self.alive.get(tensor.untyped_storage()._cdata)
        if entry is not None:
            number = entry[0]
            self._storages[number] = self._storages[number].marked(kind, module)

    def is_given(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor was made by no module in its forward pass, as far as that is known."""
        entry = self.alive.get(tensor.untyped_storage()._cdata)
        storage = None if entry is None else self._storages[entry[0]]
        return storage is None or storage.phase is not Phase.FORWARD or not storage.module

    def module_of(self, tensor: torch.Tensor) -> str:
        """Return whose a tensor's storage is."""
        entry = self.alive.get(tensor.untyped_storage()._cdata)
        return "" if entry is None else self._storages[entry[0]].module

    def current_phase(self) -> Phase:
        """Return what runs now, as autograd says."""
        in_backward = self.phase is Phase.FORWARD and torch._C._current_graph_task_id() != -1
        return Phase.BACKWARD if in_backward else self.phase

    def begin_operation(self) -> None:
        """Note that an operation runs: a gradient that dies from now on was not added to in place."""
        self._end_sum()

    def _may_take_place(self, gradient: torch.Tensor, result: torch.Tensor) -> bool:
        """Return whether a sum of two gradients of one tensor may take the place of the first.

        Autograd adds to the first in place if nobody else holds it and it is no view, but never on fake tensors.
        So the sum takes the place of a gradient that dies at once.
        Source: `can_accumulate_inplace` in torch's torch/csrc/autograd/input_buffer.cpp.
        """
        keys = gradient.untyped_storage()._cdata, result.untyped_storage()._cdata
        sizes = [self.alive[key][1] for key in keys if key in self.alive]
        is_whole = sizes == [result.nbytes] * 2 and result.nbytes > 0
        return is_whole and not gradient._is_view() and not torch.is_grad_enabled()

    def _end_sum(self) -> None:
        """Note that no gradient died of which a sum would have taken the place: it has its own."""
        if self._sum is not None:
            self._back(self._sum[1])
            self._sum = None

    def _back(self, key: int) -> None:
        if self._backing is not None and key in self.alive:
            number, num_bytes, _ = self.alive[key]
            self.alive[key] = (number, num_bytes, self._backing.take(num_bytes))

    def enter_workspace(self, workspace: Workspace, num_bytes: int) -> None:
        """Enter what a library takes and gives back within an operation, after its results were made."""
        number = len(self._storages)
        self._storages.append(
            Storage(num_bytes=num_bytes, phase=Phase.BACKWARD, module=self.module, workspace=workspace)
        )
        self._events += [(number, num_bytes), (number, 0)]
        self.peak_bytes = max(self.peak_bytes, self.live_bytes + num_bytes)

    def enter_scratch(self, scratch: Scratch) -> None:
        """Enter what a kernel takes and gives back before it ends where that depends on the GPU."""
        num_bytes, number = scratch.bytes_on(None), len(self._storages)
        phase = self.current_phase()
        origin = self._origins.current() if phase is Phase.BACKWARD else ""
        self._storages.append(
            Storage(num_bytes=num_bytes, phase=phase, module=self.module, origin=origin, scratch=scratch)
        )
        self._events += [(number, num_bytes), (number, 0)]
        self.peak_bytes = max(self.peak_bytes, self.live_bytes + num_bytes)

    def take_for_a_moment(self, sizes: Sequence[int]) -> None:
        """Enter what a kernel takes and gives back before it ends."""
        if not sizes:
            return
        self.give_back(self.take(sizes))
        if self.is_backed:
            self.let_go(self.hold(sizes))

    def take(self, sizes: Sequence[int]) -> Sequence[int]:
        """Enter what a kernel takes, and return the numbers by which it is given back."""
        if not sizes:
            return ()
        phase, numbers = self.current_phase(), range(len(self._storages), len(self._storages) + len(sizes))
        origin = self._origins.current() if phase is Phase.BACKWARD else ""
        self._storages += [
            Storage(num_bytes=num_bytes, phase=phase, module=self.module, origin=origin) for num_bytes in sizes
        ]
        self._events += zip(numbers, sizes, strict=True)
        self.live_bytes += sum(sizes)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return numbers

    def give_back(self, numbers: Sequence[int]) -> None:
        """Note that a kernel gives back what it took."""
        for number in numbers:
            self._events.append((number, 0))
            self.live_bytes -= self._storages[number].num_bytes

    def hold(self, sizes: Sequence[int]) -> list[tuple[int, int | None]]:
        """Hold real memory for what a kernel takes; it is counted, but entered nowhere."""
        assert self._backing is not None
        self.live_bytes += sum(sizes)
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return [(num_bytes, self._backing.take(num_bytes)) for num_bytes in sizes]

    def let_go(self, held: Sequence[tuple[int, int | None]]) -> None:
        """Give back what was held, the last first."""
        assert self._backing is not None
        for num_bytes, address in reversed(held):
            self.live_bytes -= num_bytes
            self._backing.give_back(address)

    def _take_place(self, gradient: int, summed: int) -> None:
        number, num_bytes, _ = self.alive[summed]
        self.alive[summed] = self.alive.pop(gradient)
        self._storages.pop()  # the sum's own: it was the last to be made
        birth = len(self._events) - 1
        while self._events[birth] != (number, num_bytes):  # only deaths can have followed
            birth -= 1
        del self._events[birth]
        self.live_bytes -= num_bytes

    def _leave(self, key: int, _storage: object) -> None:
        del self._watched[key]
        if self._sum is not None and self._sum[0] == key:
            gradient, summed, self.peak_bytes = self._sum
            self._sum = None
            self._take_place(gradient, summed)
            return
        number, num_bytes, address = self.alive.pop(key)
        if num_bytes:
            self._events.append((number, 0))
        self.live_bytes -= num_bytes
        if self._backing is not None:
            self._backing.give_back(address)


def _in_order(
    events: Sequence[tuple[int, int]], step_events: Sequence[int], moments: Container[int]
) -> Iterator[tuple[int, int]]:
    """Yield the events, storages that die together in the order of their birth: theirs is an accident of addresses."""
    for start, end in pairwise((0, *step_events, len(events))):
        for _, run in groupby(events[start:end], key=lambda event: (event[1] > 0, event[0] in moments)):
            yield from sorted(run)  # births are in order already
