"""Tells a ledger what runs: which module, the optimizer or not, and whose the parameters and gradients are."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
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

from brim.tracing.faking import parts_of
from brim.tracing.ledger import Ledger
from brim.tracing.record import Phase

# Modules that call their parts by number.
_NUMBERED = (nn.Sequential, nn.ModuleList)


class Watch:
    """Names modules and marks what belongs to them.

    Attributes:
        has_recurrence: Whether a recurrent layer ran.
        records_graph: Whether a module's result is part of a graph for a backward pass.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.has_recurrence = False
        self.records_graph = False
        self._ledger = ledger
        self._names: dict[int, str] = {}
        self._stack: list[str] = []
        self._updates: Counter[int] = Counter()
        # Weak, so that a module which the workload itself lets go, e.g. a layer that was only copied, is not counted.
        self._owners: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()

    def forget(self) -> None:
        """Forget every module seen so far."""
        self._names.clear()
        self._owners.clear()

    def name_modules(self, attributes: Mapping[str, Any]) -> None:
        """Give every module with parameters its name inside the outermost one that holds it, and mark its tensors.

        Where there are several of those, and where modules inside have numbers for names, the attribute of the workload
        comes first.
        """
        for part in (part for value in attributes.values() for part in parts_of(value)):
            if isinstance(part, nn.Module):  # a copy registers nothing
                self._owners[id(part)] = part
        owners = list(self._owners.values())
        inner = {id(child) for module in owners for child in module.modules() if child is not module}
        outermost = [module for module in owners if id(module) not in inner]
        called = {id(value): name for name, value in attributes.items()}
        for module in outermost:
            needs_name = len(outermost) > 1 or isinstance(module, _NUMBERED)
            self._name(module, called.get(id(module), "") if needs_name else "")

    def mark_gradients(self) -> None:
        """Mark the gradients that are there now."""
        with torch._C.DisableTorchFunction():  # thousands of looks at attributes, which the modes have no say in
            for module in list(self._owners.values()):
                for parameter in module._parameters.values():
                    if parameter is not None and parameter.grad is not None:
                        self._ledger.mark(parameter.grad, "gradients", self._names.get(id(module), ""))

    def num_updates(self, attributes: Mapping[str, Any]) -> int | None:
        """Return how often the optimizer that stepped least did so, of those that a workload has; None without any."""
        parts = [part for value in attributes.values() for part in parts_of(value)]
        optimizers = [_innermost(part) for part in parts if isinstance(part, torch.optim.Optimizer)]
        return min((self._updates[id(each)] for each in optimizers), default=None)

    def _name(self, root: nn.Module, attribute: str = "") -> None:
        for name, module in root.named_modules(prefix=attribute):
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
        self.has_recurrence |= isinstance(module, nn.RNNBase)
        self._stack.append(self._ledger.module)
        self._ledger.run_module(self._names[id(module)])

    def leaves(self, module: nn.Module, args: Any, output: Any) -> None:
        """A module's forward pass has ended."""
        self.records_graph |= isinstance(output, torch.Tensor) and output.requires_grad
        self._ledger.run_module(self._stack.pop() if self._stack else "")

    def optimizer_starts(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer's step begins."""
        self.mark_gradients()
        self._ledger.phase = Phase.OPTIMIZER

    def _mark_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Mark what an optimizer keeps for its parameters, whether it made that now, with itself, or loaded it."""
        with torch._C.DisableTorchFunction():
            for parameter, state in optimizer.state.items():
                for value in state.values() if isinstance(state, dict) else ():
                    if isinstance(value, torch.Tensor):
                        self._ledger.mark(value, "optimizer", self._ledger.module_of(parameter))

    def optimizer_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer's step has ended."""
        if not self._updates[id(optimizer)]:
            self._mark_state(optimizer)
        self._updates[id(optimizer)] += 1
        self._ledger.phase = Phase.FORWARD


def _innermost(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer that steps where others are wrapped around it, as Accelerate does."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


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
