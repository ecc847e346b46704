"""Calls of modules that were compiled in place: torch compiles the global hooks away, and these see the calls."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Module

Enter = Callable[[Module, Any], None]
Leave = Callable[[Module, Any, Any], None]


def watch_compiled(enter: Enter, leave: Leave) -> None:
    """Call what would be forward hooks around every module on which `Module.compile` was called.

    `torch.compile(module)` returns another module, whose own call the global hooks see. torch warns that they see it
    twice; they are not the user's, and skip what is compiled.
    """
    warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks")
    compile_in_place = Module.compile

    def compile_and_watch(module: Module, *args: Any, **kwargs: Any) -> None:
        compile_in_place(module, *args, **kwargs)
        run = module._compiled_call_impl
        assert run is not None

        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return run(*args, **kwargs)
            output = None
            enter(module, args)
            try:
                output = run(*args, **kwargs)
            finally:
                leave(module, args, output)
            return output

        module._compiled_call_impl = call  # the only place where torch keeps what a call runs

    Module.compile = compile_and_watch  # type: ignore[method-assign, assignment]
