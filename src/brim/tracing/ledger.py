"""A ledger of live bytes: every storage that an operation makes, until it dies."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Ledger(TorchDispatchMode):
    """Counts the bytes of live storages while it is active.

    Attributes:
        live_bytes: Bytes held now.
        peak_bytes: The most that was held at once.
        num_operations: Operations seen.
        events: What happened, in order: the number of a storage with its bytes where it was made, with 0 where it died.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live_bytes = 0
        self.peak_bytes = 0
        self.num_operations = 0
        self.events: list[tuple[int, int]] = []
        self._alive: dict[int, tuple[int, int]] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operation and enter the storages it made."""
        result = func(*args, **(kwargs or {}))
        self.num_operations += 1
        if isinstance(result, torch.Tensor):
            self._enter(result)
        elif isinstance(result, (tuple, list)):
            for item in result:
                if isinstance(item, torch.Tensor):
                    self._enter(item)
                elif isinstance(item, (tuple, list)):
                    for inner in item:
                        if isinstance(inner, torch.Tensor):
                            self._enter(inner)
        return result

    def _enter(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive:
            return
        event = (len(self.events), storage.nbytes())
        self._alive[key] = event
        self.events.append(event)
        self.live_bytes += event[1]
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._leave, key)

    def _leave(self, key: int) -> None:
        number, num_bytes = self._alive.pop(key)
        self.live_bytes -= num_bytes
        self.events.append((number, 0))
