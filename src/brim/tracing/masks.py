"""Attention masks of transformers on fake tensors: left out where a real run leaves them out.

transformers looks whether a mask hides anything, and makes none where it does not: then attention may run in its
leanest kernel. On fake tensors it does not look, and makes a mask for every batch. Here it looks, and is told what a
run would see: a mask that was made of ones hides nothing, and positions that the model made itself are those of one
text a row. Of any other mask it is not known, and it is made, the most that it can take.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor

_IMPORTS = "transformers.utils.import_utils"
_LOOKS_FOR_FAKES = "is_fake_tensor"
_FINDS_PACKED = "find_packed_sequence_indices"
_WARNS = "warn_if_padding_and_no_attention_mask"
# Where transformers looks at masks, and how it calls them there.
_MODULES = ("transformers.masking_utils", "transformers.modeling_attn_mask_utils")
_MASKS = ("padding_mask", "attention_mask", "mask")
_ONES = (torch.ones, torch.ones_like, torch.Tensor.new_ones)
_FULL = (torch.full, torch.full_like)
# What of ones is ones as well.
_PARTS = (
    "to cuda bool int long float half bfloat16 clone contiguous expand repeat view reshape flatten unsqueeze squeeze "
    "__getitem__"
)
CONCERNED = frozenset((torch.cat, torch.concat, *(getattr(torch.Tensor, name) for name in _PARTS.split())))
_NOTE = "brim_ones"


@contextmanager
def masks_looked_at() -> Iterator[None]:
    """Let transformers, where it has been imported, look at fake masks in the block as it does at real ones."""
    module = sys.modules.get(_IMPORTS)
    if module is None or not hasattr(module, _LOOKS_FOR_FAKES):
        yield
        return
    with mock.patch.object(module, _LOOKS_FOR_FAKES, _is_none):
        yield


def _is_none(_: Any) -> bool:
    return False


def answer(frame: FrameType | None, is_given: Callable[[Any], bool]) -> bool | None:
    """Return what transformers sees of a mask that it looks at in a frame; None where somebody else asks.

    Args:
        frame: Where it is asked.
        is_given: Returns whether a tensor is the workload's own and not the model's.
    """
    if frame is None:
        return None
    name = frame.f_code.co_name
    if name == _WARNS:
        return False
    if frame.f_globals.get("__name__") not in _MODULES:
        return None
    if name == _FINDS_PACKED:
        return not is_given(frame.f_locals["position_ids"])
    looked_at = [frame.f_locals[name] for name in _MASKS if name in frame.f_locals]
    return bool(looked_at) and are_ones(looked_at[0])


def makes_ones(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a function makes a tensor of ones."""
    if func in _FULL:
        value = args[1] if len(args) > 1 else kwargs.get("fill_value")
        return isinstance(value, (int, float)) and value == 1
    return func in _ONES


def are_ones(value: Any) -> bool:
    """Return whether all values of a tensor, or of every tensor in a list, are known to be one."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(are_ones(each) for each in value)
    note = vars(value).get(_NOTE) if isinstance(value, FakeTensor) else None
    return note is not None and note == _version(value)


def noted(tensor: Any) -> Any:
    """Return a tensor, noting that all its values are one until it, or what it is a view of, is written to."""
    if isinstance(tensor, FakeTensor) and not tensor.is_inference():  # of which torch does not count that
        vars(tensor)[_NOTE] = _version(tensor)
    return tensor


def forget(tensor: Any) -> None:
    """Note no longer that a tensor is of ones, as it may be written to past torch's count."""
    if isinstance(tensor, FakeTensor):
        vars(tensor).pop(_NOTE, None)


def _version(tensor: torch.Tensor) -> int:
    """Return how often a tensor and its views were written to, which torch counts for autograd."""
    return tensor._version
