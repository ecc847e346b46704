"""Whose backward pass runs: autograd's nodes are numbered in the order in which modules made them."""

from __future__ import annotations

from bisect import bisect_right

import torch
from torch._C._autograd import _get_sequence_nr


class Origins:
    """Knows from which of autograd's nodes on which module made them."""

    def __init__(self) -> None:
        self._nodes: list[int] = []
        self._modules: list[str] = []

    def clear(self) -> None:
        """Forget all nodes."""
        self._nodes.clear()
        self._modules.clear()

    def enter(self, module: str) -> None:
        """Note that a module makes the nodes from now on."""
        self._nodes.append(_get_sequence_nr())
        self._modules.append(module)

    def current(self) -> str:
        """Return the module whose backward pass runs now; empty where that is nobody's."""
        node = torch._C._current_autograd_node()
        at = 0 if node is None else bisect_right(self._nodes, node._sequence_nr())
        return self._modules[at - 1] if at else ""
