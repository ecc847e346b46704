"""Batches of samples of similar length, the same number of them in every epoch and on every rank.

Samples are put in order by length, the longest first, in buckets of a few batches' worth. An epoch shuffles every
bucket; then the order is cut into batches. A batch that begins in a bucket has the size that fits the bucket's longest
sample, so where the cuts are does not depend on the shuffle. As many consecutive batches as there are ranks make a
step: ranks that work side by side have batches of like lengths, and hardly wait for each other.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappush, heapreplace
from itertools import accumulate, chain, pairwise
from random import Random
from zlib import crc32

from brim.errors import InputError
from brim.planning.length_budget import Budget
from brim.planning.packing import pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """The batches of one epoch.

    Attributes:
        samples: The index of every sample, batch after batch.
        ends: Where each batch ends in `samples`.
        steps: The steps in their order; step s holds the batches from s × ranks on.
        num_ranks: How many batches make a step.
    """

    samples: array[int]
    ends: array[int]
    steps: Sequence[int]
    num_ranks: int

    def batch(self, position: int, rank: int) -> list[int]:
        """Return what a rank works on in the step at a position of the epoch."""
        step = self.steps[position]
        # Taking turns: no rank always gets the longest of a step.
        number = step * self.num_ranks + (rank + step) % self.num_ranks
        return self.samples[self.ends[number - 1] if number else 0 : self.ends[number]].tolist()

    def batches(self) -> Iterator[list[int]]:
        """Return the batches of all ranks, from the longest to the shortest."""
        for begin, end in pairwise(chain((0,), self.ends)):
            yield self.samples[begin:end].tolist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What all epochs have in common: the bucket of every sample and the cuts between batches.

    Attributes:
        buckets: The bucket of every sample; 0 is that of the longest.
        places: Which place in the epoch's order fills each place in its batches.
        ends: Where each batch ends in `places`.
        num_ranks: How many batches make a step.
    """

    buckets: array[int]
    places: array[int]
    ends: array[int]
    num_ranks: int

    @property
    def num_steps(self) -> int:
        """The steps of an epoch."""
        return len(self.ends) // self.num_ranks

    @property
    def fingerprint(self) -> int:
        """A checksum: other lengths, another budget or another number of ranks have another."""
        return crc32(self.ends, crc32(self.places, crc32(self.buckets)))

    def epoch(self, number: int, *, seed: int, shuffle: bool) -> Epoch:
        """Return the batches of an epoch.

        The step with the longest samples comes first: where they do not fit after all, that shows at once.
        """
        keys: Sequence[float] = self.buckets
        steps: Sequence[int] = range(self.num_steps)
        if shuffle:
            # Only `random()` itself is promised to give the same numbers in every version of Python.
            draw = Random(f"{seed} {number}").random
            # Halved, because 7 + 0.99… may be rounded to 8, the key of a bucket of shorter samples.
            keys = [bucket + draw() / 2 for bucket in self.buckets]
            steps = [0, *sorted(steps[1:], key=[draw() for _ in steps].__getitem__)]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        samples = array("q", map(order.__getitem__, self.places))
        return Epoch(samples=samples, ends=self.ends, steps=steps, num_ranks=self.num_ranks)


def lay_out(
    lengths: array[int], budget: Budget, *, batches_per_bucket: int, num_ranks: int = 1, allow_repeats: bool = False
) -> Layout:
    """Cut samples into batches that the budget allows.

    Args:
        lengths: The length of every sample, none above the budget's longest.
        budget: How many samples of a length fit.
        batches_per_bucket: How many batches' worth of samples a bucket holds at least; 0 for a bucket per length.
        num_ranks: How many batches make a step.
        allow_repeats: Whether batches may be repeated where the last step cannot be filled otherwise.
    """
    counts = Counter(lengths)
    bucket_of: dict[int, int] = {}
    sizes: list[int] = []
    num_samples: list[int] = []
    for length in sorted(counts, reverse=True):
        if not sizes or num_samples[-1] >= batches_per_bucket * sizes[-1]:
            sizes.append(budget.largest_at(length))
            num_samples.append(0)
        bucket_of[length] = len(sizes) - 1
        num_samples[-1] += counts[length]
    ends: list[int] = []
    end = 0
    for size, bucket_end in zip(sizes, accumulate(num_samples), strict=True):
        while end < bucket_end:
            end = min(end + size, len(lengths))
            ends.append(end)
    buckets = array("q", map(bucket_of.__getitem__, lengths))
    return _share(buckets, range(len(lengths)), ends, num_ranks=num_ranks, allow_repeats=allow_repeats)


def lay_out_packed(lengths: array[int], capacity: int, *, num_ranks: int = 1, allow_repeats: bool = False) -> Layout:
    """Pack samples into batches of at most `capacity` tokens; samples of equal length change places every epoch."""
    rows = pack(sorted(lengths, reverse=True), capacity)
    number = {length: bucket for bucket, length in enumerate(sorted(set(lengths), reverse=True))}
    buckets = array("q", map(number.__getitem__, lengths))
    ends = list(accumulate(map(len, rows)))
    return _share(buckets, chain.from_iterable(rows), ends, num_ranks=num_ranks, allow_repeats=allow_repeats)


def _share(
    buckets: array[int], places: Iterable[int], ends: list[int], *, num_ranks: int, allow_repeats: bool
) -> Layout:
    """Make the number of batches a multiple of the number of ranks: split the last ones, or else repeat some."""
    filled = array("q", places)
    num_missing = -len(ends) % num_ranks
    if num_missing and not _split_last(ends, num_missing, num_ranks=num_ranks):
        if not allow_repeats:
            raise InputError(
                f"{len(filled):,} samples in {len(ends):,} batches cannot make the same number of steps on "
                f"{num_ranks} ranks: the last step lacks {num_missing}, and too few batches can be split. "
                f"Pass allow_repeats=True to repeat {num_missing} of them every epoch, or use fewer ranks."
            )
        begins = [0, *ends]
        for number in range(num_missing):
            repeated = -1 - number % (len(begins) - 1)
            filled.extend(filled[begins[repeated - 1] : begins[repeated]])
            ends.append(len(filled))
    return Layout(buckets=buckets, places=filled, ends=array("q", ends), num_ranks=num_ranks)


def _split_last(ends: list[int], num_missing: int, *, num_ranks: int) -> bool:
    """Halve the largest batches of the last steps until none is missing; say whether there are samples enough."""
    begins = [0, *ends]
    first = len(ends) - len(ends) % num_ranks
    while (num_parts := len(ends) - first + num_missing) > begins[-1] - begins[first]:
        if first == 0:
            return False
        first -= num_ranks
    parts = [(begin - end, begin) for begin, end in pairwise(begins[first:])]  # by size, the largest first
    heapify(parts)
    while len(parts) < num_parts:
        negated, begin = parts[0]
        half = negated // 2
        heapreplace(parts, (half, begin))
        heappush(parts, (negated - half, begin - half))
    ends[first:] = sorted(begin - negated for negated, begin in parts)
    return True
