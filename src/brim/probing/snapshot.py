"""The training state of this process, kept aside and put back bit for bit."""

from __future__ import annotations

import copy
import gc
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import compress
from typing import Any

import torch
from torch import nn

from brim.probing.attributes import Attributes


@contextmanager
def restored() -> Iterator[None]:
    """Put every live module, optimizer, scheduler, scaler and random generator back when the block ends.

    Of a module, its attributes as well, as far as `Attributes` follows them.
    """
    generators = Generators()
    modules, optimizers, others = _find_live()
    attributes = Attributes(modules)
    tensors = _Tensors()
    saved_modules = [_ModuleState(module, tensors) for module in modules]
    saved_optimizers = [_OptimizerState(optimizer, tensors) for optimizer in optimizers]
    saved_others = [(other, copy.deepcopy(other.state_dict())) for other in others]
    try:
        yield
    finally:
        attributes.restore()
        for module in saved_modules:
            module.restore()
        for optimizer in saved_optimizers:
            optimizer.restore()
        for other, state in saved_others:
            other.load_state_dict(state)
        tensors.restore()
        generators.restore()


def _find_live() -> tuple[list[nn.Module], list[torch.optim.Optimizer], list[Any]]:
    """Return what training changes, wherever the user keeps it: an attribute, a global, a closure."""
    optimizer, others = torch.optim.Optimizer, (torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
    things = gc.get_objects()
    # `type(…)`, not `isinstance`: a proxy in the user's process may do anything when asked for its class.
    found = _of_types(
        things, {cls for cls in set(map(type, things)) if issubclass(cls, (nn.Module, optimizer, *others))}
    )
    return (
        [thing for thing in found if issubclass(type(thing), nn.Module)],
        [thing for thing in found if issubclass(type(thing), optimizer)],
        [thing for thing in found if issubclass(type(thing), others)],
    )


def find_generators() -> list[torch.Generator]:
    """Return generators that anything refers to; neither they nor dictionaries of nothing else are tracked."""
    found = _of_types(gc.get_referents(*gc.get_objects()), {dict, torch.Generator})
    found += gc.get_referents(*(thing for thing in found if type(thing) is dict and not gc.is_tracked(thing)))
    return list({id(thing): thing for thing in found if type(thing) is torch.Generator}.values())


def _of_types(things: list[Any], types: set[type]) -> list[Any]:
    """Return those of some types among very many things: a process that has imported a framework has a million."""
    return list(compress(things, map(types.__contains__, map(type, things))))


class _Tensors:
    """Contents of tensors, each kept once, in host memory."""

    def __init__(self) -> None:
        self._saved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def save(self, tensor: torch.Tensor) -> None:
        if id(tensor) not in self._saved:
            self._saved[id(tensor)] = (tensor, tensor.detach().to("cpu", copy=True))

    def restore(self) -> None:
        with torch.no_grad():
            for tensor, contents in self._saved.values():
                tensor.copy_(contents)


class _ModuleState:
    """One module's own parameters, buffers, gradients and mode, without its children's."""

    def __init__(self, module: nn.Module, tensors: _Tensors) -> None:
        self._module = module
        self._training = module.training
        self._parameters = dict(module._parameters)
        self._buffers = dict(module._buffers)
        self._details = []
        for parameter in self._parameters.values():
            if parameter is None:
                continue
            data = parameter.data
            tensors.save(data)
            if parameter.grad is not None:
                tensors.save(parameter.grad)
            self._details.append((parameter, type(parameter), data, parameter.grad, parameter.requires_grad))
        for buffer in self._buffers.values():
            if buffer is not None:
                tensors.save(buffer)

    def restore(self) -> None:
        self._module.training = self._training
        for name, parameter in self._parameters.items():
            self._module._parameters[name] = parameter
        for name, buffer in self._buffers.items():
            self._module._buffers[name] = buffer
        for parameter, kind, data, grad, requires_grad in self._details:
            parameter.data = data
            parameter.grad = grad
            if parameter.requires_grad != requires_grad:
                parameter.requires_grad_(requires_grad)
            if type(parameter) is not kind:  # that of a lazy module was made for its first batch
                parameter.__class__ = kind


class _OptimizerState:
    """One optimizer's groups and per-parameter state."""

    def __init__(self, optimizer: torch.optim.Optimizer, tensors: _Tensors) -> None:
        self._optimizer = optimizer
        self._groups = [{**group, "params": list(group["params"])} for group in optimizer.param_groups]
        self._state = {parameter: dict(state) for parameter, state in optimizer.state.items()}
        for state in self._state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    tensors.save(value)
                else:
                    state[name] = copy.deepcopy(value)

    def restore(self) -> None:
        for group, saved in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.clear()
            group.update(saved)
        self._optimizer.state.clear()
        self._optimizer.state.update(self._state)


class Trained:
    """The weights and states of optimizers, in host memory."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._tensors = _Tensors()
        self._states = [_OptimizerState(optimizer, self._tensors) for optimizer in optimizers]
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._tensors.save(parameter.data)

    def restore(self) -> None:
        """Put everything back."""
        for state in self._states:
            state.restore()
        self._tensors.restore()


class Generators:
    """The states of Python's, NumPy's and torch's random generators, and of the user's own of torch's.

    Args:
        own: The user's own, where they are known; looking for them takes a while.
    """

    def __init__(self, own: Sequence[torch.Generator] | None = None) -> None:
        own = find_generators() if own is None else own
        self._own = [(generator, generator.get_state()) for generator in own]
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy is not None else None
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def restore(self) -> None:
        """Put every generator back."""
        for generator, state in self._own:
            generator.set_state(state)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
