"""What a step selects by values, which a trace does not have: all of it, the most that it can be; or one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

_aten = torch.ops.aten
_MASKS = (torch.bool, torch.uint8)
# Operators that take masks and return nothing whose size depends on them.
PUTS = frozenset((_aten.index_put.default, _aten.index_put_.default, _aten._unsafe_index_put.default))


# Whether all of what may be selected is, in the trace that runs now.
_selects_all = ContextVar("selects_all", default=True)


@contextmanager
def selecting(*, least: bool) -> Iterator[None]:
    """Let steps in the block select one value, or all: code treats none apart."""
    before = _selects_all.set(not least)
    try:
        yield
    finally:
        _selects_all.reset(before)


def select_all(func: Any, args: Sequence[Any]) -> tuple[Any, list[torch.Tensor]]:
    """Return what an operator returns where every value is selected, or one, and what it holds meanwhile.

    More cannot be selected, so with all the memory is at most this. Operators that do not select are `NotImplemented`.
    """
    selection = _SELECTIONS.get(func)
    return (NotImplemented, []) if selection is None else selection(*args)


def selects(func: Any) -> bool:
    """Return whether the size of what an operator returns depends on values."""
    return func not in _SIZED


def places_of(indices: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    """Return the places that masks among indices stand for, as kernels list them: a row of numbers for each."""
    return [_nonzero(index) for index in indices if index is not None and index.dtype in _MASKS]


def _nonzero(values: torch.Tensor) -> torch.Tensor:
    num_selected = values.numel() if _selects_all.get() else min(1, values.numel())
    return torch.empty((num_selected, values.dim()), dtype=torch.long, device=values.device)


def _places(values: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    return _nonzero(values), []


def _masked_select(values: torch.Tensor, mask: torch.Tensor) -> tuple[Any, list[torch.Tensor]]:
    values, mask = torch.broadcast_tensors(values, mask)
    return _index(values, [mask])


def _index(values: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> tuple[Any, list[torch.Tensor]]:
    """Index by numbers instead of masks: a mask stands for one index for each of its dimensions."""
    numbers: list[torch.Tensor | None] = []
    places = places_of(indices)
    of_masks = iter(places)
    for index in indices:
        if index is None or index.dtype not in _MASKS:
            numbers.append(index)
        else:
            numbers.extend(next(of_masks).unbind(1))
    return _aten.index.Tensor(values, numbers), places


def _ctc_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, *_: Any
) -> tuple[tuple[torch.Tensor, ...], list[torch.Tensor]]:
    """Return the losses, and for every sample and step a number for each label and each gap between labels."""
    num_steps, num_samples = log_probs.shape[:2]
    num_states = 2 * targets.shape[-1] + 1
    return (log_probs.new_empty(num_samples), log_probs.new_empty(num_samples, num_steps, num_states)), []


def _ctc_loss_backward(gradient: torch.Tensor, log_probs: torch.Tensor, *args: Any) -> tuple[Any, list[torch.Tensor]]:
    log_alpha = args[4]
    return torch.empty_like(log_probs), [torch.empty_like(log_alpha)]


def _bincount(
    values: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0
) -> tuple[Any, list[torch.Tensor]]:
    """Return as many counts as are asked for at the least, as of classes, whose number is known."""
    if not minlength:
        return NotImplemented, []
    dtype = torch.long if weights is None else torch.float64
    return torch.empty(minlength, dtype=dtype, device=values.device), []


def _unique(
    values: torch.Tensor, _sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Any, list[torch.Tensor]]:
    """Return all values, each of them its own kind, and hold them sorted beside their places meanwhile."""
    flat = values.new_empty(values.numel())
    places = torch.empty_like(flat, dtype=torch.long)
    inverse = torch.empty_like(values, dtype=torch.long) if return_inverse else places.new_empty(0)
    counts = torch.empty_like(places) if return_counts else places.new_empty(0)
    return (flat, inverse, counts), [torch.empty_like(flat), places]


def _unique_in_turn(
    values: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Any, list[torch.Tensor]]:
    """Return all values, where equal ones are dropped only beside each other."""
    return (NotImplemented, []) if dim is not None else _unique(values, True, return_inverse, return_counts)


_SELECTIONS: Mapping[Any, Callable[..., tuple[Any, list[torch.Tensor]]]] = {
    _aten.nonzero.default: _places,
    _aten.masked_select.default: _masked_select,
    _aten.index.Tensor: _index,
    _aten.bincount.default: _bincount,
    _aten._unique2.default: _unique,
    _aten.unique_consecutive.default: _unique_in_turn,
    _aten._ctc_loss.default: _ctc_loss,
    _aten._ctc_loss.Tensor: _ctc_loss,
    _aten._ctc_loss_backward.default: _ctc_loss_backward,
    _aten._ctc_loss_backward.Tensor: _ctc_loss_backward,
}
# Those whose sizes follow from those of their arguments, though fake tensors have no kernel that says so.
_SIZED = frozenset(func for func, select in _SELECTIONS.items() if select in (_ctc_loss, _ctc_loss_backward, _bincount))
