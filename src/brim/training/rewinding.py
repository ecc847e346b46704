"""The start of a window, to go back to: buffers and random numbers as they were."""

from __future__ import annotations

import torch
from torch import nn

from brim.probing.snapshot import Generators, find_generators


class Rewind:
    """Keeps what a forward pass changes besides gradients: the model's buffers and the random generators.

    Copies are made once and then written over, and the user's own generators are looked for once, so that marking a
    window's start costs next to nothing.

    Args:
        model: Whose buffers are kept; None for random generators alone.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self._model = model
        self._own: list[torch.Generator] | None = None
        self._copies: dict[tuple[nn.Module, str], torch.Tensor] = {}
        self._buffers: dict[tuple[nn.Module, str], torch.Tensor] = {}
        self._generators: Generators | None = None

    def mark(self) -> None:
        """Keep the state of now."""
        if self._own is None:
            self._own = find_generators()
        self._generators = Generators(self._own)
        modules = [] if self._model is None else self._model.modules()
        self._buffers = {
            (module, name): buffer
            for module in modules
            for name, buffer in module._buffers.items()
            if buffer is not None
        }
        self._copies = {place: self._copy(place, buffer) for place, buffer in self._buffers.items()}

    def restore(self) -> None:
        """Go back to the last mark."""
        with torch.no_grad():
            for (module, name), buffer in self._buffers.items():
                module._buffers[name] = buffer
                buffer.copy_(self._copies[module, name])
        if self._generators is not None:
            self._generators.restore()

    def _copy(self, place: tuple[nn.Module, str], buffer: torch.Tensor) -> torch.Tensor:
        kept = self._copies.get(place)
        if kept is None or (kept.shape, kept.dtype, kept.device) != (buffer.shape, buffer.dtype, buffer.device):
            return buffer.detach().clone()
        return kept.copy_(buffer.detach())
