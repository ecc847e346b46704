"""The worst case of a dataset: its longest sample, as often as a probe needs it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch.utils.data

# How many samples are read to find the longest; reading one may mean decoding a file.
MOST_READ = 1000


class Repeated(torch.utils.data.Dataset[Any]):
    """One sample, many times."""

    def __init__(self, sample: Any, length: int) -> None:
        self._sample = sample
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._sample


def longest_sample(dataset: Any, *, most: int = MOST_READ) -> Any:
    """Return the sample with the most elements among those that are read: all, or `most` spread over the dataset.

    >>> longest_sample([{"input_ids": [1, 2]}, {"input_ids": [1, 2, 3]}])
    {'input_ids': [1, 2, 3]}
    """
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        step = -(-len(dataset) // most) or 1
        samples: Iterable[Any] = (dataset[index] for index in range(0, len(dataset), step))
    else:
        samples = itertools.islice(iter(dataset), most)
    longest, most_elements = None, -1
    for sample in samples:
        if num_elements(sample) > most_elements:
            longest, most_elements = sample, num_elements(sample)
    return longest


def num_elements(sample: Any) -> int:
    """Return how many numbers a sample holds, whatever it is made of.

    >>> num_elements({"input_ids": [1, 2, 3], "label": 1}), num_elements((torch.zeros(2, 3), "name"))
    (4, 7)
    """
    if isinstance(sample, torch.Tensor):
        return sample.numel()
    if isinstance(sample, Mapping):
        return sum(num_elements(value) for value in sample.values())
    if isinstance(sample, Sequence) and not isinstance(sample, (str, bytes)):
        if sample and isinstance(sample[0], (int, float)):
            return len(sample)
        return sum(num_elements(value) for value in sample)
    size = getattr(sample, "size", 1)  # an array's; an image has width and height there
    if isinstance(size, tuple):
        return int(torch.Size(size).numel())
    return int(size) if isinstance(size, int) else 1
