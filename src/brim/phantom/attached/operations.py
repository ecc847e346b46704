"""Inside a job on phantoms: runs some of torch's operations otherwise, on every thread and however they are called.

Every call passes the dispatch key `BackendSelect`, after autograd and autocast and just before the device's own code,
and for almost no operation anything is registered there. So a function registered there sees each call, also those from
within other operations, and can pass it on. A dispatch mode would not do: where one is active, autograd adds gradients
out of place, and memory is not what it would be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch

_KEY = "BackendSelect"
_NUMBERS = (bool, int, float, complex)

Original = Callable[[], Any]


class Handler(Protocol):
    """Runs one operation otherwise, or as it is by calling `original`."""

    def __call__(
        self, operation: torch._ops.OpOverload, original: Original, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Return what the operation is to return."""
        ...


class Operations:
    """The operations of torch that run otherwise, as long as this object lives."""

    def __init__(self) -> None:
        self._library = torch.library.Library("aten", "IMPL")
        self._others: list[torch.library.Library] = []
        self._handlers: dict[torch._ops.OpOverload, list[Handler]] = {}

    def add(self, name: str, handler: Handler) -> None:
        """Show all overloads of an operation to a handler, or the one that is named; earlier handlers see them first.

        What writes to `out` is left alone. An operation that this torch does not have is passed over.
        """
        packet_name, _, only = name.partition(".")
        packet = getattr(torch.ops.aten, packet_name, None)
        for overload in () if packet is None else packet.overloads():
            operation = getattr(packet, overload)
            takes_out = any(argument.is_out for argument in operation._schema.arguments)
            if overload == only or not (only or takes_out):
                self._add(operation, handler)

    def add_of(self, namespace: str, name: str, handler: Handler) -> None:
        """Show an operation of another library to a handler; the library may be loaded later, or never."""
        after = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, _KEY))

        def run(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            operation = getattr(getattr(torch.ops, namespace), name).default
            return handler(operation, partial(operation.redispatch, keyset & after, *args, **kwargs), args, kwargs)

        self._others.append(torch.library.Library(namespace, "IMPL"))
        self._others[-1].impl(name, run, _KEY, with_keyset=True)

    def _add(self, operation: torch._ops.OpOverload, handler: Handler) -> None:
        handlers = self._handlers.setdefault(operation, [])
        handlers.append(handler)
        if len(handlers) > 1:
            return
        after = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, _KEY))
        redispatch = operation.redispatch
        kinds = [str(argument.type) for argument in operation._schema.arguments]
        tensors = tuple(index for index, kind in enumerate(kinds) if kind == "Tensor")

        def run(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            for index in tensors:
                if index < len(args) and type(args[index]) in _NUMBERS:
                    args = _with_tensors(args, tensors)
            call: Original = partial(redispatch, keyset & after, *args, **kwargs)
            for each in reversed(handlers):
                call = partial(each, operation, call, args, kwargs)
            return call()

        schema = operation._schema
        name = schema.name.removeprefix("aten::")
        self._library.impl(f"{name}.{schema.overload_name}".rstrip("."), run, _KEY, with_keyset=True)


def _with_tensors(args: Sequence[Any], tensors: Sequence[int]) -> tuple[Any, ...]:
    """Return arguments with tensors for the numbers that Python was given for them."""
    made = list(args)
    first = next((made[index] for index in tensors if isinstance(made[index], torch.Tensor)), None)
    for index in tensors:
        if index < len(made) and type(made[index]) in _NUMBERS:
            made[index] = _tensor_for(made[index], first)
    return tuple(made)


def _tensor_for(number: Any, first: torch.Tensor | None) -> torch.Tensor:
    """Return a tensor for a number, of the type that the result has, or wider where that changes no result.

    A short type may not hold the number: float16 ends at 65,504, and the mean of more elements divides by their number.
    """
    if first is None:
        return torch.scalar_tensor(number)
    dtype = torch.result_type(first, number)
    if dtype.is_complex or dtype is torch.bool:
        return torch.scalar_tensor(number, dtype=dtype)
    made = torch.scalar_tensor(number, dtype=torch.float64 if dtype.is_floating_point else torch.int64)
    # Beside a tensor with dimensions, one without them changes only the kind of type.
    return made if first.dim() and first.dtype is dtype else made.to(dtype)
