"""Data parallelism around a workload's modules: DDP, or FSDP2 with its sharded parameters in the optimizers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from brim.workload import Workload


def wrapped(workload_class: type[Workload]) -> type[Workload]:
    """Return the workload with what its `wrap` asks for put around its modules as soon as they are built."""
    if workload_class.wrap is None:
        return workload_class

    class Wrapped(workload_class):  # type: ignore[misc, valid-type]
        def build(self) -> None:
            super().build()
            wrap_modules(self)

    Wrapped.__name__, Wrapped.__qualname__ = workload_class.__name__, workload_class.__qualname__
    return Wrapped


def wrap_modules(workload: Workload) -> None:
    """Wrap the modules that are attributes of a workload, in place."""
    for name, module in _outermost(workload).items():
        if workload.wrap == "fsdp":
            before = dict(module.named_parameters())
            _shard(module, workload.device)
            after = dict(module.named_parameters())
            _exchange(workload, {before[key]: after[key] for key in before})
        elif workload.kind == "train" and any(parameter.requires_grad for parameter in module.parameters()):
            # Without gradients there is nothing that DDP would do.
            device_ids = [workload.device.index] if workload.device.type == "cuda" else None
            setattr(workload, name, DistributedDataParallel(module, device_ids=device_ids))


def _outermost(workload: Workload) -> dict[str, nn.Module]:
    """Return the workload's modules with parameters, but for those inside another and those wrapped already."""
    modules = {name: value for name, value in vars(workload).items() if isinstance(value, nn.Module)}
    inner = {id(child) for module in modules.values() for child in module.modules() if child is not module}
    return {
        name: module
        for name, module in modules.items()
        if id(module) not in inner
        and next(module.parameters(), None) is not None
        and not isinstance(module, DistributedDataParallel)
    }


def _shard(module: nn.Module, device: Any) -> None:
    """Shard every block of a list of blocks on its own, then the rest, as FSDP's documentation advises."""
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    for child in module.modules():
        if isinstance(child, nn.ModuleList):
            for block in child:
                if next(block.parameters(), None) is not None:
                    fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)


def _exchange(workload: Workload, parameters: dict[nn.Parameter, nn.Parameter]) -> None:
    """Give the optimizers, which were made before, the sharded parameters for the whole ones."""
    for value in vars(workload).values():
        if isinstance(value, torch.optim.Optimizer):
            for group in value.param_groups:
                group["params"] = [parameters.get(parameter, parameter) for parameter in group["params"]]
