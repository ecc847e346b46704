"""Activation checkpointing switched on in a model that knows it, or put around its repeated blocks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

# How models switch it on themselves: Transformers, then timm. With the lines that do so.
_SWITCHES = ("gradient_checkpointing_enable", "set_grad_checkpointing")


def refusal(model: nn.Module) -> str | None:
    """Return why checkpointing would not leave the training of a model as it is, or None."""
    if any(_switches(module) for module in model.modules()):
        return None
    blocks = [block for _, listed in _block_lists(model) for block in listed]
    if not blocks:
        return "it has no repeated blocks"
    return "BatchNorm in its blocks would count every batch twice" if any(map(_has_batch_norm, blocks)) else None


def checkpoint_blocks(name: str, model: nn.Module, *, keep_random: bool = False) -> str | None:
    """Switch checkpointing on in a model and return the lines that do so; None where it has no repeated blocks.

    Args:
        name: What the model is called in the lines.
        model: The model.
        keep_random: Whether a block that runs again gets its random numbers again, as training needs. A trace has no
            use for random numbers, and the state of a generator is not faked.
    """
    for path, module in model.named_modules():
        for switch in _switches(module):
            getattr(module, switch)()
            return f"{_join(name, path)}.{switch}()"
    lists = dict(_block_lists(model))
    if not lists:
        return None
    has_batch_norm = False
    for blocks in lists.values():
        for block in blocks:
            forward: Any = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=keep_random)
            block.forward = forward
            has_batch_norm |= _has_batch_norm(block)
    paths = " + ".join(f"list({_join(name, path)})" for path in lists) if len(lists) > 1 else _join(name, *lists)
    lines = (
        f"for block in {paths}:\n"
        "    block.forward = functools.partial(torch.utils.checkpoint.checkpoint, block.forward, use_reentrant=False)"
    )
    return lines + ("\n# BatchNorm's statistics then move twice a step: halve its momentum" if has_batch_norm else "")


def _block_lists(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, list[nn.Module]]]:
    """Yield the outermost lists of at least two blocks of one kind: modules with parts and parameters of their own."""
    blocks = list(model.children())
    is_list = isinstance(model, (nn.ModuleList, nn.Sequential)) and len(blocks) > 1
    if is_list and len({type(block) for block in blocks}) == 1 and all(map(_is_block, blocks)):
        yield prefix, blocks
        return
    for name, module in model.named_children():
        yield from _block_lists(module, f"{prefix}.{name}" if prefix else name)


def _is_block(module: nn.Module) -> bool:
    return any(True for _ in module.children()) and any(True for _ in module.parameters())


def _switches(module: nn.Module) -> list[str]:
    return [switch for switch in _SWITCHES if callable(getattr(module, switch, None))]


def _has_batch_norm(block: nn.Module) -> bool:
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in block.modules())


def _join(name: str, *parts: str) -> str:
    """Write the path of a module in Python: `model.layers[0]`, not `model.layers.0`."""
    path = name
    for part in ".".join(parts).split("."):
        path += f"[{part}]" if part.isdecimal() else f".{part}" if part else ""
    return path
