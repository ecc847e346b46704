"""Tells a ledger what runs: which module, the optimizer or not, and whose the parameters and gradients are."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from brim.tracing.ledger import Ledger
from brim.tracing.record import Phase


class Watch:
    """Names modules and marks what belongs to them."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._names: dict[int, str] = {}
        self._stack: list[str] = []
        # Weak, so that a module which the workload itself lets go, e.g. a layer that was only copied, is not counted.
        self._owners: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()

    def forget(self) -> None:
        """Forget every module seen so far."""
        self._names.clear()
        self._owners.clear()

    def name_modules(self) -> None:
        """Give every module with parameters its name inside the outermost one that holds it, and mark its tensors."""
        owners = list(self._owners.values())
        inner = {id(child) for module in owners for child in module.modules() if child is not module}
        for module in owners:
            if id(module) not in inner:
                self._name(module)

    def mark_gradients(self) -> None:
        """Mark the gradients that are there now."""
        with torch._C.DisableTorchFunction():  # thousands of looks at attributes, which the modes have no say in
            for module in list(self._owners.values()):
                for parameter in module._parameters.values():
                    if parameter is not None and parameter.grad is not None:
                        self._ledger.mark(parameter.grad, "gradients", self._names.get(id(module), ""))

    def _name(self, root: nn.Module) -> None:
        for name, module in root.named_modules():
            self._names[id(module)] = name or type(root).__name__
            self._owners[id(module)] = module
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None:
                    self._ledger.mark(tensor, "parameters", self._names[id(module)])

    def registered(self, module: nn.Module, name: str, part: Any) -> None:
        """Remember a module that was given a parameter or another module."""
        self._owners[id(module)] = module

    def enters(self, module: nn.Module, args: Any) -> None:
        """A module's forward pass begins."""
        if id(module) not in self._names:
            self._name(module)
        self._stack.append(self._ledger.module)
        self._ledger.module = self._names[id(module)]

    def leaves(self, module: nn.Module, args: Any, output: Any) -> None:
        """A module's forward pass has ended."""
        self._ledger.module = self._stack.pop() if self._stack else ""

    def optimizer_starts(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer's step begins."""
        self.mark_gradients()
        self._ledger.phase = Phase.OPTIMIZER

    def optimizer_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer's step has ended."""
        self._ledger.phase = Phase.FORWARD


@contextmanager
def watched(ledger: Ledger) -> Iterator[Watch]:
    """Keep a ledger informed while a workload runs."""
    watch = Watch(ledger)
    with ExitStack() as stack:
        for handle in (
            register_module_module_registration_hook(watch.registered),
            register_module_parameter_registration_hook(watch.registered),
            register_module_forward_pre_hook(watch.enters),
            register_module_forward_hook(watch.leaves, always_call=True),
            register_optimizer_step_pre_hook(watch.optimizer_starts),
            register_optimizer_step_post_hook(watch.optimizer_ends),
        ):
            stack.callback(handle.remove)
        yield watch
