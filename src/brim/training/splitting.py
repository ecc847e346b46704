"""A batch into microbatches and back: every tensor in it is cut along its first dimension."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any

import torch

from brim.errors import InputError


def split(batch: Any, num_parts: int) -> list[Any]:
    """Cut a batch into at most `num_parts` microbatches whose sizes differ by one sample at most.

    The batch may be a tensor, or a tuple, list, mapping or dataclass of tensors, lists of samples and values that all
    samples share. Order is kept, and no microbatch is empty.

    >>> [part.tolist() for part in split(torch.arange(7), 3)]
    [[0, 1, 2], [3, 4], [5, 6]]
    """
    num_samples = count_samples(batch)
    num_parts = min(num_parts, num_samples)
    size, num_larger = divmod(num_samples, num_parts)
    ends = [part * size + min(part, num_larger) for part in range(num_parts + 1)]
    return [_map(batch, itemgetter(slice(start, end))) for start, end in pairwise(ends)]


def merge(batches: Sequence[Any]) -> Any:
    """Put microbatches together again, the inverse of `split`.

    Raises:
        InputError: The tensors differ in more than their first dimension, as texts of different lengths do.

    >>> merge([{"x": torch.zeros(2, 3), "name": "a"}, {"x": torch.ones(1, 3), "name": "a"}])["x"].shape
    torch.Size([3, 3])
    """
    parts = [list(leaves(batch)) for batch in batches]
    merged = iter([_join(each) for each in zip(*parts, strict=True)])
    return _map(batches[0], lambda leaf: next(merged))


def count_samples(batch: Any) -> int:
    """Return how many samples a batch holds: the first dimension that all its tensors share.

    >>> count_samples((torch.zeros(4, 3), torch.zeros(4)))
    4
    """
    sizes = {len(leaf) for leaf in leaves(batch)}
    if len(sizes) != 1:
        found = f"first dimensions {sorted(sizes)}" if sizes else "no tensor with a first dimension"
        raise InputError(
            f"The batch has {found}, so it cannot be cut into microbatches. Give tensors whose first dimension is the "
            "sample, alone or in a tuple, list, mapping or dataclass, or cut it yourself and call backward() for each."
        )
    (num_samples,) = sizes
    if num_samples == 0:
        raise InputError("The batch holds no samples. Leave it out.")
    return num_samples


def leaves(batch: Any) -> Iterator[Any]:
    """Return what `split` cuts, in a fixed order."""
    found: list[Any] = []
    _map(batch, lambda leaf: found.append(leaf))
    return iter(found)


def _map(batch: Any, change: Callable[[Any], Any]) -> Any:
    """Return the batch with every part that has samples changed, and everything else as it is."""
    if isinstance(batch, torch.Tensor):
        return change(batch) if batch.ndim else batch
    if isinstance(batch, Mapping):
        changed = {name: _map(value, change) for name, value in batch.items()}
        return changed if type(batch) is dict else _like(batch, changed)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_map(value, change) for value in batch))
    if isinstance(batch, (list, tuple)):
        if _holds_samples(batch):
            return change(batch)
        return type(batch)(_map(value, change) for value in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = [field.name for field in dataclasses.fields(batch)]
        return dataclasses.replace(batch, **{name: _map(getattr(batch, name), change) for name in fields})
    return batch


def _holds_samples(values: Sequence[Any]) -> bool:
    """Tell a list of samples, such as texts, from a list of tensors that each hold all samples."""
    return bool(values) and not any(
        isinstance(value, (torch.Tensor, Mapping, list, tuple)) or dataclasses.is_dataclass(value) for value in values
    )


def _like(batch: Mapping[str, Any], changed: dict[str, Any]) -> Any:
    """Return a mapping of the batch's own class, such as transformers' BatchEncoding."""
    make: Any = type(batch)
    return make(changed)


def _join(parts: Sequence[Any]) -> Any:
    if not isinstance(parts[0], torch.Tensor):
        return type(parts[0])(value for part in parts for value in part)
    shapes = sorted({tuple(part.shape[1:]) for part in parts})
    if len(shapes) > 1:
        raise InputError(f"Microbatches with samples of shapes {', '.join(map(str, shapes))} do not make one batch.")
    return torch.cat(list(parts))
