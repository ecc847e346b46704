"""Data loaders in a trace: in this process, and in an order that nobody has to draw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

# What a loader is told that runs in this process.
_IN_PROCESS = {"num_workers": 0, "timeout": 0, "pin_memory": False, "persistent_workers": False}


class Loaders:
    """What loaders in a trace were asked for.

    Attributes:
        num_samples: How many samples the last of them has whose batches are of the microbatch's size; None without any
            that knows.
    """

    def __init__(self, microbatch: int) -> None:
        self.num_samples: int | None = None
        self._microbatch = microbatch

    def iterate(self, loader: DataLoader[Any]) -> _SingleProcessDataLoaderIter:
        """Return an iterator in this process."""
        if loader.batch_size == self._microbatch:
            with suppress(TypeError, NotImplementedError):
                self.num_samples = len(loader.sampler)  # type: ignore[arg-type]  # some have a length, some none
        return _iterate_here(loader)


@contextmanager
def loaders_in_order(microbatch: int) -> Iterator[Loaders]:
    """Let loaders in the block load in this process, and samplers of torch go through their samples in order."""
    loaders = Loaders(microbatch)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(DataLoader, "_get_iterator", lambda loader: loaders.iterate(loader)))
        stack.enter_context(mock.patch.object(SubsetRandomSampler, "__iter__", lambda self: iter(self.indices)))
        for sampler in (RandomSampler, WeightedRandomSampler):
            stack.enter_context(mock.patch.object(sampler, "__iter__", _in_order))
        stack.enter_context(mock.patch.object(DistributedSampler, "__iter__", _unshuffled(DistributedSampler.__iter__)))
        yield loaders


def _iterate_here(loader: DataLoader[Any]) -> _SingleProcessDataLoaderIter:
    with ExitStack() as stack:
        for name, value in _IN_PROCESS.items():
            stack.enter_context(mock.patch.dict(vars(loader), {name: value}))
        # It draws a seed.
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch._C.DisableTorchFunction())
        return _SingleProcessDataLoaderIter(loader)


def _in_order(sampler: Any) -> Iterator[int]:
    num_known = len(sampler.data_source if isinstance(sampler, RandomSampler) else sampler.weights)
    return (number % num_known for number in range(sampler.num_samples))


def _unshuffled(iterate: Any) -> Any:
    def in_order(sampler: Any) -> Iterator[int]:
        with mock.patch.object(sampler, "shuffle", new=False):
            return iter(list(iterate(sampler)))

    return in_order
