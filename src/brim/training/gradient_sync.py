"""How the gradients of a window become the mean over all ranks: one process, DDP, or FSDP2.

Communication is left to the last microbatch of a window. Which one is the last is not known when the data ends early,
so each way can also bring the gradients together afterwards, in `reduce`. A mean of what already is the mean over the
ranks changes nothing, so doing it once too often is harmless.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from brim.errors import InputError
from brim.training.averaging import average, buckets, unflatten
from brim.training.telling import warn_caller


class Alone:
    """One process: nothing to bring together."""

    rank = 0
    num_ranks = 1
    is_lockstep = False

    def expect(self, *, last: bool) -> None:
        """Do nothing."""

    def fall_silent(self) -> None:
        """Do nothing."""

    def backward(self, loss: torch.Tensor, *, last: bool) -> bool:
        """Run the backward pass; return whether the gradients are now the mean over all ranks."""
        loss.backward()
        return True

    def reduce(self, parameters: Sequence[torch.Tensor]) -> None:
        """Do nothing."""

    def gather(self, row: Sequence[float]) -> list[list[float]]:
        """Return the row of every rank."""
        return [list(row)]


class Replicated:
    """Every rank has the whole model, in `DistributedDataParallel` or on its own.

    Attributes:
        is_lockstep: Whether every rank must run the same forward and backward passes.
    """

    is_lockstep = False

    def __init__(self, modules: Sequence[DistributedDataParallel], group: Any, device: torch.device, *, defer: bool):
        self._modules = modules
        self._group = group
        self._device = device
        self._defer = defer
        self._muted = ExitStack()
        self.rank = dist.get_rank(group)
        self.num_ranks = dist.get_world_size(group)

    def expect(self, *, last: bool) -> None:
        """Let the next forward pass, which comes before we are called, prepare for communication only if it is last.

        `no_sync` is left open between calls, because DDP decides in the forward pass. It closes with this object.
        """
        self._muted.close()
        if self._defer or not last:
            for module in self._modules:
                self._muted.enter_context(module.no_sync())

    def fall_silent(self) -> None:
        """Keep the forward passes that follow free of communication, so that one that fails leaves no rank waiting.

        Buffers, which DDP would send around in the first of them, are sent now. Where ranks may have different numbers
        of windows they stay each rank's own.
        """
        for module in self._modules:
            if module.forward_sync_buffers and not self._defer:
                self._send_buffers(list(module.module.buffers()))
            module.require_forward_param_sync = False

    def _send_buffers(self, buffers: Sequence[torch.Tensor]) -> None:
        for bucket in buckets(sorted(buffers, key=lambda buffer: str(buffer.dtype))):
            flat = torch.cat([buffer.detach().reshape(-1) for buffer in bucket])
            dist.broadcast(flat, src=dist.get_global_rank(self._group, 0), group=self._group)
            unflatten(flat, bucket)

    def backward(self, loss: torch.Tensor, *, last: bool) -> bool:
        """Run the backward pass; return whether the gradients are now the mean over all ranks."""
        # What the forward pass prepared for, not what was expected of it: it may have run out of turn.
        is_reduced = bool(self._modules) and all(module.require_forward_param_sync for module in self._modules)
        loss.backward()
        return is_reduced

    def reduce(self, parameters: Sequence[torch.Tensor]) -> None:
        """Replace every gradient by its mean over the ranks; one that is missing on some of them counts as zero."""
        average(parameters, group=self._group, device=self._device)

    def gather(self, row: Sequence[float]) -> list[list[float]]:
        """Return the row of every rank."""
        return _gather(row, self._group, self._device)


class Sharded:
    """Every rank has a part of each parameter: FSDP2's `fully_shard`."""

    is_lockstep = True

    def __init__(self, roots: Sequence[Any], group: Any, device: torch.device) -> None:
        self._roots = roots
        self._group = group
        self._device = device
        self.rank = dist.get_rank(group)
        self.num_ranks = dist.get_world_size(group)

    def expect(self, *, last: bool) -> None:
        """Do nothing: FSDP2 decides in the backward pass."""

    def fall_silent(self) -> None:
        """Do nothing: without communication there is no forward pass."""

    def backward(self, loss: torch.Tensor, *, last: bool) -> bool:
        """Run the backward pass; return whether the gradients are now the mean over all ranks."""
        self._set_sync(last)
        try:
            loss.backward()
        finally:
            self._set_sync(True)
        return last

    def reduce(self, parameters: Sequence[torch.Tensor]) -> None:
        """Bring together what earlier backward passes left unsharded on every rank.

        FSDP2 does that at the end of a backward pass that went through its root, and only there. So one is run that
        touches no parameter, through a method registered as a forward pass.
        """
        from torch.distributed.fsdp import register_fsdp_forward_method

        for root in self._roots:
            root.brim_reduce = lambda seed: seed * 1
            register_fsdp_forward_method(root, "brim_reduce")
            root.brim_reduce(torch.zeros((), device=self._device, requires_grad=True)).backward()
            del root.brim_reduce

    def gather(self, row: Sequence[float]) -> list[list[float]]:
        """Return the row of every rank."""
        return _gather(row, self._group, self._device)

    def _set_sync(self, is_on: bool) -> None:
        for root in self._roots:
            root.set_requires_gradient_sync(is_on)


GradientSync = Alone | Replicated | Sharded


def sync_for(model: nn.Module, *, group: Any = None, defer: bool = False) -> GradientSync:
    """Return how the gradients of `model` become the mean over its ranks.

    Args:
        model: Plain, in `DistributedDataParallel`, or sharded by `fully_shard`; it may also contain such modules.
        group: The ranks, where the model does not tell.
        defer: Bring gradients together after each window, never during a backward pass.
    """
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    if not dist.is_available() or not dist.is_initialized():
        return Alone()
    roots = _sharded_roots(model)
    if roots:
        return Sharded(roots, group or _mesh_group(roots[0]), device)
    replicas = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
    if replicas or group is not None:
        return Replicated(replicas, group or replicas[0].process_group, device, defer=defer)
    if dist.get_world_size() > 1 and dist.get_rank() == 0:
        warn_caller(
            f"There are {dist.get_world_size()} ranks, and the model is neither in DistributedDataParallel nor sharded "
            "by fully_shard: every rank accumulates on its own. Pass the wrapped model, or group= to average over it."
        )
    return Alone()


def check_lockstep(sync: GradientSync, num_microbatches: int) -> None:
    """Refuse, on all ranks alike, batches that do not make equally many microbatches."""
    counts = [int(row[0]) for row in sync.gather([float(num_microbatches)])]
    if len(set(counts)) > 1:
        raise InputError(
            f"The ranks' batches make {counts} microbatches, and with fully_shard every rank has to run every "
            "forward pass. Give each at least as many samples as there are microbatches."
        )


def _sharded_roots(model: nn.Module) -> list[Any]:
    """Return the outermost modules that `fully_shard` was called on."""
    import torch.distributed.fsdp as fsdp

    if any(isinstance(module, fsdp.FullyShardedDataParallel) for module in model.modules()):
        raise InputError("The model is wrapped in FullyShardedDataParallel. Use fully_shard (FSDP2) instead.")
    kind = getattr(fsdp, "FSDPModule", None)
    if kind is None:
        if any(hasattr(parameter, "device_mesh") for parameter in model.parameters()):
            raise InputError(f"The model is sharded, and torch is {torch.__version__}. Use torch 2.6 or newer.")
        return []
    names = [name for name, module in model.named_modules() if isinstance(module, kind)]
    return [model.get_submodule(name) for name in names if not any(_contains(other, name) for other in names)]


def _contains(outer: str, inner: str) -> bool:
    return outer != inner and (not outer or inner.startswith(outer + "."))


def _mesh_group(root: Any) -> Any:
    mesh = next(root.parameters()).device_mesh
    if mesh.ndim != 1:
        raise InputError(
            f"The model is sharded over a mesh of {mesh.ndim} dimensions, and which of them share a batch is not "
            "known. Pass group=, the process group over which items are summed."
        )
    return mesh.get_group()


def _gather(row: Sequence[float], group: Any, device: torch.device) -> list[list[float]]:
    mine = torch.tensor(row, dtype=torch.float64, device=device)
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, mine, group=group)
    gathered: list[list[float]] = torch.stack(rows).tolist()
    return gathered
