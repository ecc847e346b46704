"""Real tensors turned into fake ones: of a workload that was built for real, or of weights that were loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from brim.workload import Workload

_FAKE = torch._C._TorchDispatchModeKey.FAKE


class Faker:
    """Makes one fake tensor of each real one, so that ties are kept."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        # The real ones stay until the end, so that their identities are not given to others.
        self._faked: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def pairs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Every real tensor with the fake one."""
        return list(self._faked.values())

    def workload(self, workload: Workload) -> None:
        """Fake all that a workload's attributes hold."""
        optimizers = []
        for name, value in list(vars(workload).items()):
            if isinstance(value, torch.Tensor):
                setattr(workload, name, self._tensor(value))
            for part in parts_of(value):
                if isinstance(part, nn.Module):
                    self.module(part)
                elif isinstance(part, torch.optim.Optimizer):
                    optimizers.append(part)
        for optimizer in optimizers:  # whose parameters are those of modules
            self._optimizer(optimizer)

    def module(self, module: nn.Module) -> None:
        """Fake a module's parameters and buffers."""
        for part in module.modules():
            both: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
            for tensors in both:
                for name, tensor in tensors.items():
                    if tensor is not None:
                        tensors[name] = self._tensor(tensor)

    def _optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["params"] = [self._tensor(parameter) for parameter in group["params"]]
        states = list(optimizer.state.items())
        optimizer.state.clear()
        for parameter, state in states:
            optimizer.state[self._tensor(parameter)] = {
                name: self._tensor(value) if isinstance(value, torch.Tensor) else value for name, value in state.items()
            }

    def _tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self._faked:
            leaf = tensor if tensor.is_leaf else tensor.detach().requires_grad_()  # graphs of real tensors end here
            self._faked[id(tensor)] = (tensor, self._mode.from_tensor(leaf, static_shapes=True))
        return self._faked[id(tensor)][1]


@contextmanager
def modules_faked_when_moved(mode: FakeTensorMode) -> Iterator[None]:
    """Fake a module whose weights were loaded for real before it is moved, or else it loses its ties.

    A real parameter takes the data of its moved copy and stays the same object, which it cannot with a fake one's.
    """
    apply: Callable[..., nn.Module] = nn.Module._apply

    def fake_and_apply(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        if torch._C._get_dispatch_mode(_FAKE) is not None:
            with torch._C.DisableTorchFunction():
                Faker(mode).module(module)
        return apply(module, *args, **kwargs)

    with mock.patch.object(nn.Module, "_apply", fake_and_apply):
        yield


def parts_of(value: Any) -> list[Any]:
    """Return what an attribute holds: itself, or what is in it."""
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else [value]
