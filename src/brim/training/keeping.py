"""`brim.keep_batches`: a loader whose batches outlive the loop that drew them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from brim.errors import InputError


class KeptBatches:
    """A loader that a loop can go on with where another left it.

    A batch is done when the next one is asked for. A loop that is left before, by an exception or by `break`, leaves
    the batch that it was working on, and those that workers have fetched, to the next loop over the same object.

    Attributes:
        num_done: The batches of this pass that are done.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        if not hasattr(loader, "__iter__") or isinstance(loader, Iterator):
            raise InputError(
                f"keep_batches was given a {type(loader).__name__}. Give a loader that can be looped over again."
            )
        self.num_done = 0
        self._loader: Any = loader
        self._source: Iterator[Any] | None = None
        self._kept: list[Any] = []

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """Go on with the pass that was left, or begin a new one."""
        if self._source is None:
            self._source, self.num_done = iter(self._loader), 0
        while True:
            if not self._kept:
                try:
                    self._kept = [next(self._source)]
                except StopIteration:
                    self._source = None
                    return
            yield self._kept[0]
            self._kept = []
            self.num_done += 1

    def start_over(self) -> None:
        """Forget what is left of this pass."""
        self._source, self._kept = None, []


def keep_batches(loader: Iterable[Any]) -> KeptBatches:
    """Let no batch be lost that was drawn when a loop failed.

    `Accumulator.step` keeps its batch by itself. This is for a loop that is left and entered again, as it is when a
    whole function starts anew after an out-of-memory: the next loop begins with the batch that the last one was in.

    Args:
        loader: A `DataLoader`, or anything that can be looped over again.

    >>> batches = keep_batches([[1, 2], [3, 4], [5, 6]])
    >>> next(iter(batches)), list(batches)
    ([1, 2], [[1, 2], [3, 4], [5, 6]])
    >>> for batch in batches:
    ...     if batch == [3, 4]:
    ...         break
    >>> list(batches)
    [[3, 4], [5, 6]]
    """
    return KeptBatches(loader)
