"""A ledger of live bytes: every storage that an operation makes, until it dies."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from brim.tracing.backing import Backing
from brim.tracing.kernels import result_bytes, scratch_bytes

_DEVICE_OF = torch.ops.prim.device.default


class Ledger(TorchDispatchMode):
    """Counts the bytes of live storages while it is active.

    Attributes:
        live_bytes: Bytes held now.
        peak_bytes: The most that was held at once.
        num_operations: Operations seen.
    """

    def __init__(self, backing: Backing | None = None) -> None:
        super().__init__()
        self.live_bytes = 0
        self.peak_bytes = 0
        self.num_operations = 0
        self._backing = backing
        self._alive: dict[int, tuple[int, int | None]] = {}

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
        result = func(*args, **(kwargs or {}))
        self.num_operations += 1
        if isinstance(result, torch.Tensor):
            self._enter(result, result_bytes(func, args))
        elif isinstance(result, (tuple, list)):
            for item in result:
                if isinstance(item, torch.Tensor):
                    self._enter(item)
                elif isinstance(item, (tuple, list)):
                    for inner in item:
                        if isinstance(inner, torch.Tensor):
                            self._enter(inner)
        if self._backing is not None:
            self._hold_for_a_moment(self._backing, scratch_bytes(func, args, result))
        return result

    def _enter(self, tensor: torch.Tensor, num_bytes: int | None = None) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        if num_bytes is None:
            num_bytes = storage.nbytes()
        self._alive[key] = (num_bytes, self._backing.take(num_bytes) if self._backing else None)
        self.live_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._leave, key)

    def _leave(self, key: int) -> None:
        num_bytes, address = self._alive.pop(key)
        self.live_bytes -= num_bytes
        if self._backing is not None:
            self._backing.give_back(address)

    @staticmethod
    def _hold_for_a_moment(backing: Backing, sizes: Iterable[int]) -> None:
        for address in [backing.take(num_bytes) for num_bytes in sizes]:
            backing.give_back(address)
