"""Modules that tracing imports for itself and a workload may import as well: its own run then holds them too."""

from __future__ import annotations

import builtins
import sys
from typing import Any

# What takes nearly all of the memory of the modules that fake tensors need. transformers imports both.
_HEAVY = ("torch._dynamo", "sympy")
_NEVER_COMPILED = "torch._compile"


class SharedImports:
    """Sees whether a workload that is being built asks for modules that are there only because it is traced.

    Attributes:
        num_bytes: What they take.
        are_asked: Whether they were asked for.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.are_asked = False
        self._import = builtins.__import__

    def begin(self) -> None:
        """Look at every import from now on, where there is anything to see."""
        if self.num_bytes:
            builtins.__import__ = self._see

    def end(self) -> None:
        """Look no longer."""
        builtins.__import__ = self._import

    def _see(self, name: str, globals: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not self.are_asked and name.startswith(_HEAVY):
            # Inside of functions torch asks for them only to trace, but for what it keeps from being compiled, such as
            # the methods of optimizers; what is imported anew asks as it would in a run.
            caller = sys._getframe(1)
            module = str(caller.f_globals.get("__name__"))
            only_traces = module.startswith(("torch.", "brim.")) and module != _NEVER_COMPILED
            self.are_asked = not only_traces or caller.f_code.co_name == "<module>"
        return self._import(name, globals, *args, **kwargs)
