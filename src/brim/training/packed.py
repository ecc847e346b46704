"""`brim.collate_packed`: several sequences in one row, with what attention needs to keep them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from brim.errors import InputError
from brim.planning.packing import cu_seqlens

# The label that torch's cross-entropy ignores.
IGNORED = -100
# Fields that a packed row replaces: it has no padding to mask, and its positions begin anew with every sequence.
_REPLACED = ("attention_mask", "position_ids")


def collate_packed(samples: Sequence[Any]) -> dict[str, Any]:
    """Join samples into one row, as the `collate_fn` of a `DataLoader`.

    Every sample is a sequence of tokens, or a mapping with `input_ids` and other fields that have a value for each
    token, e.g. `labels`. The first label of each sequence is ignored, because a language model would be asked to
    predict it from the end of the sequence before.

    Returns:
        Every field as a row of shape (1, tokens); `position_ids`, which begin at 0 in every sequence; `cu_seqlens`,
        32-bit offsets from 0 to the number of tokens; and `max_seqlen`. The last two are what `flash_attn_varlen_func`
        takes; models of transformers tell the sequences apart by their positions, if called with `use_cache=False`.

    >>> batch = collate_packed([torch.tensor([5, 6, 7]), torch.tensor([8, 9])])
    >>> batch["input_ids"], batch["position_ids"]
    (tensor([[5, 6, 7, 8, 9]]), tensor([[0, 1, 2, 0, 1]]))
    >>> batch["cu_seqlens"], batch["max_seqlen"]
    (tensor([0, 3, 5], dtype=torch.int32), 3)
    """
    if not samples:
        raise InputError("There are no samples to pack. Leave out empty batches.")
    mappings = [sample if isinstance(sample, Mapping) else {"input_ids": sample} for sample in samples]
    names = [name for name in mappings[0] if name not in _REPLACED]
    rows = [{name: torch.as_tensor(mapping[name]) for name in names} for mapping in mappings]
    lengths = [_length(number, row) for number, row in enumerate(rows)]
    offsets = cu_seqlens(lengths)
    batch: dict[str, Any] = {name: torch.cat([row[name] for row in rows])[None] for name in names}
    if "labels" in batch:
        batch["labels"][0, offsets[:-1]] = IGNORED
    batch["position_ids"] = torch.cat([torch.arange(length) for length in lengths])[None]
    batch["cu_seqlens"] = torch.tensor(offsets, dtype=torch.int32)
    batch["max_seqlen"] = max(lengths)
    return batch


def _length(number: int, row: Mapping[str, torch.Tensor]) -> int:
    """Return the tokens of a sample, all of whose fields must have one value for each."""
    shapes = {name: tuple(value.shape) for name, value in row.items()}
    if "input_ids" not in shapes or len(shapes["input_ids"]) != 1 or len(set(shapes.values())) != 1:
        raise InputError(
            f"Sample {number} of the batch has the shapes {shapes}. Packing needs `input_ids` of shape (tokens,) and "
            "every other field alike; leave out what is not one value per token."
        )
    return shapes["input_ids"][0]
