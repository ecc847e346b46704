"""Runs operations on fake tensors and enters the storages that they make in a ledger."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.autograd.graph import _engine_run_backward
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from brim.tracing.attention import backward_scratch
from brim.tracing.cudnn import workspace_of
from brim.tracing.generation import Generation
from brim.tracing.kernels import (
    batch_norm_scratch,
    laid_out,
    operand_copies,
    result_bytes,
    scratch_of,
    softmax_scratch,
    uses_blas,
    widened,
)
from brim.tracing.ledger import Ledger
from brim.tracing.onednn import convolution_passes, product_scratch, workspace_bytes
from brim.tracing.places import GPU, Places
from brim.tracing.record import Phase
from brim.tracing.selections import PUTS, places_of, select_all, selects
from brim.tracing.shortcuts import Shortcuts
from brim.tracing.unknown import Values

_DEVICE_OF = torch.ops.prim.device.default
_ADD = torch.ops.aten.add.Tensor
_INDEX_PUT = torch.ops.aten.index_put.default
_DROPOUT = torch.ops.aten.native_dropout.default
_TO_COPY = torch.ops.aten._to_copy.default
# After how many operations a long trace says that it goes on: two seconds or so.
_TOLD_OPERATIONS = 16_384
# After how many it is taken for one that does not end: minutes, and a hundred times what large models take.
MOST_OPERATIONS = 5_000_000
_AUTOGRAD_CALL = _engine_run_backward.__code__


class NoEndError(RuntimeError):
    """So many operations ran that there is no end to be seen."""


class Recorder(TorchDispatchMode):
    """Sees every operation, has it answered without values, and knows what it takes.

    Attributes:
        ledger: Where storages are entered.
        num_operations: Operations seen.
        selects_all: Whether something was selected by values, and so counted whole.
        generation: Answers what transformers' generation asks; None where it does not run.
        values: Remembers what was refused.
    """

    def __init__(
        self,
        ledger: Ledger,
        shortcuts: Shortcuts | None = None,
        *,
        capability: tuple[int, int] | None = None,
        microbatch: int = 1,
        places: Places | None = None,
        values: Values | None = None,
        tell: Callable[[int], None] | None = None,
    ) -> None:
        """Enter into a ledger while the block runs.

        Args:
            ledger: Where to enter.
            shortcuts: Answers operators faster; None to ask fake tensors for all.
            capability: The compute capability of the GPU whose kernels the CPU's stand in for, so that what these keep
                for themselves is left out; None for the CPU.
            microbatch: How many samples are traced.
            places: Knows what is on the GPU, and so entered; None to enter all.
            values: Remembers what was refused.
            tell: Called with the number of operations every now and then.
        """
        super().__init__()
        self.ledger = ledger
        self.num_operations = 0
        self.selects_all = False
        self.generation: Generation | None = None
        self.values = values or Values()
        self._shortcuts = shortcuts
        self._capability = capability
        self._microbatch = microbatch
        self._tell = tell
        self._places = places
        if places is not None:
            places.held = ledger.alive

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
        """Keep torch from wrapping every call below: nothing is compiled while it is recorded."""
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
        self.ledger.begin_operation()
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
                self.selects_all |= selects(func)
                if is_counted:
                    self._enter_all(places)
        self.num_operations += 1
        if self.num_operations > MOST_OPERATIONS:
            raise NoEndError
        if self._tell is not None and self.num_operations % _TOLD_OPERATIONS == 0:
            self._tell(self.num_operations)
        if self._places is not None and (not is_counted or (args and result is args[0])):
            return result  # on the host, or written in place
        if self.ledger.is_backed:
            self._enter_passes(func, args, result)
        copied = () if self._capability is None else self.ledger.take(laid_out(func, args))
        self._enter_results(func, args, result, by_autograd=by_autograd)
        self._enter_scratch(func, args)
        self.ledger.give_back(copied)
        return result

    def _enter_passes(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        """Enter what a convolution made, with real memory for what it copies meanwhile."""
        ledger = self.ledger
        for each in convolution_passes(func, args, result):
            of_inputs, of_result = ledger.hold(each.of_inputs), ledger.hold(each.of_result)
            ledger.let_go(of_inputs)
            again = ledger.hold(each.again)
            ledger.enter(each.result)
            ledger.let_go([*of_result, *again])

    def _enter_results(self, func: Any, args: tuple[Any, ...], result: Any, *, by_autograd: bool) -> None:
        """Enter what an operation made, unless it is there already."""
        ledger = self.ledger
        if isinstance(result, torch.Tensor):
            gradient = args[0] if func is _ADD and by_autograd else None
            kind = "inputs" if self._is_moved(func) else None
            ledger.enter(result, result_bytes(func, args), kind=kind, in_place_of=gradient)
        elif isinstance(result, (tuple, list)):
            if self._capability is None and (workspace := workspace_bytes(func, args)):
                ledger.enter(result[-1], workspace)
            for item in reversed(result) if func is _DROPOUT else result:  # its mask is made first
                if isinstance(item, torch.Tensor):
                    ledger.enter(item)
                elif isinstance(item, (tuple, list)):
                    self._enter_all([inner for inner in item if isinstance(inner, torch.Tensor)])

    def _enter_scratch(self, func: Any, args: tuple[Any, ...]) -> None:
        """Enter what kernels and their libraries take within an operation, after its results were made."""
        ledger = self.ledger
        if ledger.is_backed:
            ledger.let_go(ledger.hold(product_scratch(func, args)))
        if self._capability is not None and uses_blas(func):
            ledger.use_blas()
        ledger.take_for_a_moment(operand_copies(func, args))
        if self._capability is None:
            ledger.take_for_a_moment(batch_norm_scratch(func, args))
        else:
            if (scratch := scratch_of(func, args)) is not None:
                ledger.enter_scratch(scratch)
            for moment in (softmax_scratch(func, args), widened(func, args), *backward_scratch(func, args)):
                ledger.take_for_a_moment(moment)
        taken = workspace_of(func, args, microbatch=self._microbatch, capability=self._capability)
        if taken is not None:
            ledger.enter_workspace(taken, taken.at(self._microbatch))

    def _is_moved(self, func: Any) -> bool:
        """Return whether an operator of the forward pass brings something from the host to the GPU."""
        wanted = None if self._places is None else self._places.wanted
        return wanted == GPU and func is _TO_COPY and self.ledger.current_phase() is Phase.FORWARD

    def _enter_all(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            self.ledger.enter(tensor)
