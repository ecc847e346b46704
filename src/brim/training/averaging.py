"""Gradients into their mean over ranks, after a window: no rank runs out of memory while the others wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from brim.errors import OutOfMemoryError

# Gradients travel in pieces of about this size. Source: the default bucket of DistributedDataParallel.
BUCKET_BYTES = 25 * 2**20


def average(parameters: Sequence[torch.Tensor], *, group: Any, device: torch.device) -> None:
    """Replace every gradient by its mean over the ranks; one that is missing on some of them counts as zero.

    What takes memory is asked for before ranks wait for each other, and all hear whether each of them got it.

    Raises:
        OutOfMemoryError: A rank has no room for gradients that it lacks; on all ranks.
    """
    room = _room_for(parameters)
    missing = [parameter.grad is None for parameter in parameters]
    mine = [*(not is_missing for is_missing in missing), *missing, room is None]
    *known, is_short = _any_rank(mine, group, device)
    is_anywhere, is_missing_somewhere = known[: len(parameters)], known[len(parameters) :]
    added = [has and lacks for has, lacks in zip(is_anywhere, is_missing_somewhere, strict=True)]
    if any(added) and any(_any_rank([not _add_zeros(parameters, added)], group, device)):
        raise OutOfMemoryError(
            "A rank has no memory for the gradients of parameters that only other ranks used. Nothing was updated. "
            "No smaller microbatch changes that: brim plan shows what would save memory.",
            microbatch=0,
        )
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if room is None or is_short:
        del room
        _average_in_place(gradients, group)
        return
    for bucket in buckets(gradients):
        flat = room[bucket[0].device][: sum(gradient.nbytes for gradient in bucket)].view(bucket[0].dtype)
        _flatten(bucket, flat)
        dist.all_reduce(flat.div_(dist.get_world_size(group)), group=group)
        unflatten(flat, bucket)


def _average_in_place(gradients: Sequence[torch.Tensor], group: Any) -> None:
    """Take one gradient after the other: slower, and without memory of its own."""
    for gradient in gradients:
        # Gradients have the strides of their parameter, and so the same on all ranks.
        order = sorted(range(gradient.dim()), key=gradient.stride, reverse=True)
        flat = gradient.detach().permute(order).reshape(-1).div_(dist.get_world_size(group))
        dist.all_reduce(flat, group=group)
        if flat.data_ptr() != gradient.data_ptr():
            gradient.detach().permute(order).copy_(flat.view([gradient.shape[k] for k in order]))


def _any_rank(flags: Sequence[bool], group: Any, device: torch.device) -> list[bool]:
    """Return for each flag whether it is set on any rank."""
    found = torch.tensor(flags, dtype=torch.uint8, device=device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX, group=group)
    return [bool(flag) for flag in found.tolist()]


def _room_for(parameters: Sequence[torch.Tensor]) -> dict[torch.device, torch.Tensor] | None:
    """Return bytes on every device for the largest bucket that there may be; None where there is no memory for them."""
    sizes = [parameter.nbytes for parameter in parameters]
    num_bytes = min(sum(sizes), BUCKET_BYTES + max(sizes, default=0))
    devices = {parameter.device for parameter in parameters}
    try:
        return {device: torch.empty(num_bytes, dtype=torch.uint8, device=device) for device in devices}
    except (RuntimeError, MemoryError):
        return None


def _add_zeros(parameters: Sequence[torch.Tensor], wanted: Sequence[bool]) -> bool:
    """Give parameters without a gradient one of zeros where it is wanted; return whether there was memory for it."""
    try:
        for parameter, is_wanted in zip(parameters, wanted, strict=True):
            if is_wanted and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
    except (RuntimeError, MemoryError):
        return False
    return True


def _flatten(tensors: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
    if all(tensor.is_contiguous() for tensor in tensors):
        torch.cat([tensor.reshape(-1) for tensor in tensors], out=flat)
        return
    pieces = flat.split([tensor.numel() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        piece.view_as(tensor).copy_(tensor)  # where `reshape` would take memory


def unflatten(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy what was put together back into its tensors."""
    pieces = flat.split([tensor.numel() for tensor in tensors])
    for tensor, piece in zip(tensors, pieces, strict=True):
        tensor.detach().copy_(piece.view_as(tensor))


def buckets(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return tensors in order, in pieces of one type and device that are not much above `BUCKET_BYTES`."""
    buckets: list[list[torch.Tensor]] = []
    num_bytes = 0
    for tensor in tensors:
        previous = buckets[-1][-1] if buckets else None
        is_alike = previous is not None and (previous.dtype, previous.device) == (tensor.dtype, tensor.device)
        if not is_alike or num_bytes >= BUCKET_BYTES:
            buckets.append([])
            num_bytes = 0
        buckets[-1].append(tensor)
        num_bytes += tensor.nbytes
    return buckets
