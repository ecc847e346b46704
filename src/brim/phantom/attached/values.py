"""Inside a job on phantoms: small whole numbers and truth values of the device are computed, on the host.

Kernels do nothing, so what they would make reads as zeros. But whether a text has ended, where a batch is padded and
which tokens a mask selects decide what a job does next. Device memory is host memory here, so operations on such values
run on the CPU, in place. What follows from numbers that were never computed (logits, losses) is not known:

- a comparison with a token that was never sampled is false: no text ends early, and generation goes to its longest;
- floats are finite and compared with numbers as zeros; of two tensors of floats the first is the larger one, so that
  whoever waits for no better score waits to the end;
- where a size depends on such a value, the largest it can be is taken (sizes.py).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Any

import torch
from torch.utils._pytree import tree_map

from brim.phantom.attached.operations import Operations, Original

# Larger tensors are not computed: 2 million tokens.
LARGEST_BYTES = 16 << 20
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "isin")
# True of two tensors of floats: the first is taken for the larger one.
_LARGER = ("ne", "gt", "ge")
# Of truth values, one that was never computed counts as false.
_LOGIC = (
    *("logical_not", "logical_and", "logical_or", "logical_xor", "bitwise_not", "bitwise_and", "bitwise_or"),
    *("bitwise_xor", "any", "all", "mul", "where", "masked_fill"),
)
_ARITHMETIC = (
    *("add", "sub", "rsub", "neg", "abs", "floor_divide", "remainder", "fmod", "div", "pow", "sign", "clamp"),
    *("clamp_min", "clamp_max", "minimum", "maximum", "max", "min", "amax", "amin", "argmax", "argmin", "sum", "prod"),
    *("cumsum", "cumprod", "count_nonzero", "cat", "stack", "gather", "index", "index_select", "flip", "roll", "sort"),
    *("topk", "tril", "triu", "scatter", "scatter_add", "index_put", "index_fill", "index_add", "searchsorted"),
    *("bucketize", "__lshift__", "__rshift__", "bitwise_left_shift", "bitwise_right_shift", "masked_scatter"),
    *("fill", "zero", "random"),
)
# Of these nothing is left of what their target held.
_OVERWRITING = ("fill_", "zero_", "random_")


class State(IntEnum):
    """What is known of a tensor's values, least first."""

    UNKNOWN = 0
    ASSUMED = 1
    KNOWN = 2
    # Assumed to be true everywhere, although the memory was not written: it is too large.
    ONES = 3


class Known:
    """What the driver remembers of the values of tensors that live."""

    def __init__(self) -> None:
        driver = ctypes.CDLL(None)
        self._get, self._set = driver.brim_values_get, driver.brim_values_set
        self._get.argtypes, self._get.restype = [ctypes.c_uint64], ctypes.c_int
        self._set.argtypes, self._set.restype = [ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int], None

    def state(self, tensor: torch.Tensor) -> State:
        """Return what is known of a tensor; all is of the host's."""
        return State(self._get(tensor.untyped_storage().data_ptr())) if tensor.is_cuda else State.KNOWN

    def set(self, tensor: torch.Tensor, state: State, *, written: bool) -> None:
        """Remember what is known; of a part, no more than of the rest."""
        storage = tensor.untyped_storage()
        start, num_bytes = storage.data_ptr(), storage.nbytes()
        if not start:
            return
        if tensor.numel() * tensor.itemsize < num_bytes:
            state = min(state, State(self._get(start)))
        self._set(start, num_bytes if written else 0, state)


def is_plain(value: Any) -> bool:
    """Return whether a value is a tensor of torch itself, with memory of its own."""
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided


def is_small(tensor: torch.Tensor) -> bool:
    """Return whether a tensor holds whole numbers or truth values, and few enough to be computed."""
    dtype = tensor.dtype
    return not (dtype.is_floating_point or dtype.is_complex) and tensor.untyped_storage().nbytes() <= LARGEST_BYTES


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the host with the memory of one of the device."""
    storage = tensor.untyped_storage()
    if not tensor.is_cuda or not storage.nbytes():
        return tensor if not tensor.is_cuda else torch.empty(tensor.shape, dtype=tensor.dtype)
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    whole = torch.frombuffer(memory, dtype=tensor.dtype)
    return whole.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


class Values:
    """Computes operations on whole numbers and truth values after they have run as they are."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._float = 0.0

    def attach(self, operations: Operations) -> None:
        """See every operation that can be computed."""
        operations.add("multinomial.default", self._draw)
        for name in _COMPARISONS:
            self._add(operations, name, self._compare)
        for name in _LOGIC:
            self._add(operations, name, self._combine)
        for name in _ARITHMETIC:
            self._add(operations, name, self._calculate)
        operations.add("copy_", self._copy)
        operations.add("arange.start_out", self._count_up)

    def _add(self, operations: Operations, name: str, handler: Callable[..., Any]) -> None:
        operations.add(name, handler)
        operations.add(f"{name}_", handler)

    def _compare(self, operation: Any, original: Original, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        result = original()
        tensors = _device_tensors(args)
        if not tensors:
            return result
        if _are_of_floats(tensors):
            self._assume(result, _name_of(operation).rstrip("_") in _LARGER)
        elif all(self._constant(each) is not None for each in tensors):
            self._fill(operation, result, args)
        elif all(map(is_small, tensors)):
            if any(self._known.state(each) is State.UNKNOWN for each in tensors):
                self._known.set(result, State.ASSUMED, written=False)
            else:
                self._compute(operation, result, args, kwargs, tensors)
        return result

    def _combine(self, operation: Any, original: Original, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        result = original()
        if _is_elsewhere(args[0]):
            return result
        tensors = _device_tensors(args)
        if not tensors or any(each.dtype is not torch.bool for each in tensors):
            return self._after(operation, result, args, kwargs, tensors)
        if all(self._known.state(each) is State.ONES for each in tensors):
            self._fill(operation, result, args)
        elif all(map(is_small, tensors)):
            self._compute(operation, result, args, kwargs, tensors)
        return result

    def _calculate(self, operation: Any, original: Original, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        result = original()
        return result if _is_elsewhere(args[0]) else self._after(operation, result, args, kwargs, _device_tensors(args))

    def _after(
        self, operation: Any, result: Any, args: Sequence[Any], kwargs: dict[str, Any], tensors: list[torch.Tensor]
    ) -> Any:
        if not tensors:
            return result
        in_place = result is args[0]
        sources = tensors[1:] if in_place and _name_of(operation) in _OVERWRITING else tensors
        if all(map(is_small, tensors)) and not any(self._known.state(each) is State.UNKNOWN for each in sources):
            self._compute(operation, result, args, kwargs, sources)
        elif in_place and is_small(tensors[0]):
            self._known.set(result, State.UNKNOWN, written=False)
        return result

    def _draw(self, operation: Any, original: Original, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Draw as ever; before torch 2.6 that asks whether all probabilities are zero."""
        self._float = 1.0
        try:
            return original()
        finally:
            self._float = 0.0

    def _copy(self, operation: Any, original: Original, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        result = original()
        to, source = args[:2]
        if to.dtype.is_floating_point or not (to.is_cuda or source.is_cuda):
            return result
        if not (is_plain(to) and is_plain(source)) or not is_small(to):
            return result
        state = self._known.state(source) if is_small(source) else State.UNKNOWN
        if state is not State.UNKNOWN:
            on_host(to).copy_(self._as_host(source))
        if to.is_cuda:
            self._known.set(to, min(state, State.KNOWN), written=state is not State.UNKNOWN)
        return result

    def _count_up(self, operation: Any, original: Original, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        result = original()
        if is_plain(result) and result.is_cuda and is_small(result):
            on_host(result).copy_(torch.arange(*args[:3], dtype=result.dtype))
            self._known.set(result, State.KNOWN, written=True)
        return result

    def _constant(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the one value that all elements are taken to have; None where they have their own."""
        if tensor.dtype.is_floating_point:
            return torch.full((), self._float, dtype=tensor.dtype)
        return torch.ones((), dtype=torch.bool) if self._known.state(tensor) is State.ONES else None

    def _fill(self, operation: Any, result: torch.Tensor, args: Sequence[Any]) -> None:
        """Give a result the one value that follows from those of its operands."""
        operands: list[Any] = [
            self._constant(each) if isinstance(each, torch.Tensor) and each.is_cuda else each for each in args
        ]
        is_reduction = _name_of(operation) in ("any", "all")
        value = operands[0] if is_reduction else operation(*operands)
        self._assume(result, bool(value.all()))

    def _assume(self, result: torch.Tensor, is_true: bool) -> None:
        """Take all truth values of a result for true or for false."""
        if not is_true:
            self._known.set(result, State.ASSUMED, written=False)
        elif is_small(result):
            on_host(result).fill_(1)
            self._known.set(result, State.ASSUMED, written=True)
        else:
            self._known.set(result, State.ONES, written=False)

    def _compute(
        self, operation: Any, result: Any, args: Sequence[Any], kwargs: dict[str, Any], sources: Sequence[torch.Tensor]
    ) -> None:
        """Run an operation on the host, and write what it gives into the memory of the device."""
        made = [each for each in _flat(result) if is_plain(each) and each.is_cuda]
        if not made or not all(map(is_small, made)):
            return
        state = min((self._known.state(each) for each in sources), default=State.KNOWN)
        values = operation(
            *tree_map(self._as_host, list(args)),
            **{name: value for name, value in kwargs.items() if name != "generator"},
        )
        for target, value in zip(made, _flat(values), strict=True):
            in_place = any(target is each for each in _flat(args))
            has_its_size = value.shape == target.shape
            if has_its_size and not in_place:
                on_host(target).copy_(value)
            self._known.set(target, min(state, State.KNOWN) if has_its_size else State.UNKNOWN, written=has_its_size)

    def _as_host(self, value: Any) -> Any:
        if not _is_on_device(value):
            return value
        if self._known.state(value) is State.ONES:
            return torch.ones((), dtype=value.dtype).expand(value.shape)
        return on_host(value)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _flat(each)
    elif isinstance(value, torch.Tensor):
        yield value


def _device_tensors(args: Sequence[Any]) -> list[torch.Tensor]:
    """Return the device's tensors among arguments; none where one is of a kind of its own."""
    found = list(_flat(args))
    return [each for each in found if each.is_cuda] if all(map(is_plain, found)) else []


def _are_of_floats(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether these are two tensors of floats; one that is compared with itself is one."""
    if len(tensors) < 2 or not all(each.dtype.is_floating_point for each in tensors):
        return False
    return tensors[0].data_ptr() != tensors[1].data_ptr()


def _is_elsewhere(value: Any) -> bool:
    """Return whether the first argument of an operation is not one of the device's whole numbers."""
    return isinstance(value, torch.Tensor) and (value.dtype.is_floating_point or not _is_on_device(value))


def _name_of(operation: Any) -> str:
    return operation._schema.name.removeprefix("aten::")  # type: ignore[no-any-return]


def _is_on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_cuda
