"""Slices by a number that a trace does not know, such as the length of the longest text in a batch.

`x[:n]` takes at most all of `x`, and it does where the batch is the worst case, as it is to be. How much `x[n]` takes
does not depend on `n`.
"""

from __future__ import annotations

from typing import Any

import torch

from brim.tracing.unknown import UnknownNumber, forget

_GET, _SET = torch.Tensor.__getitem__, torch.Tensor.__setitem__
CONCERNED = (_GET, _SET)


def cut(func: Any, tensor: torch.Tensor, index: Any, *new: Any) -> Any:
    """Return what one of `CONCERNED` gives where an index is unknown; else `NotImplemented`."""
    parts = index if isinstance(index, tuple) else (index,)
    if not any(map(_is_unknown, parts)):
        return NotImplemented
    result = func(tensor, tuple(_most_of(part) if _is_unknown(part) else part for part in parts), *new)
    forget(tensor if func is _SET else result)
    return result


def _is_unknown(part: Any) -> bool:
    numbers = (part.start, part.stop, part.step) if isinstance(part, slice) else (part,)
    return any(isinstance(number, UnknownNumber) for number in numbers)


def _most_of(part: Any) -> Any:
    return slice(None) if isinstance(part, slice) else 0
