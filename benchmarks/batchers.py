"""Ways to make batches of the same lengths under the same number of tokens: brim, and what else people use."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from lhotse import MonoCut
from lhotse.dataset.sampling import DynamicBucketingSampler
from torch.utils.data import BatchSampler, RandomSampler
from transformers.trainer_pt_utils import LengthGroupedSampler

import brim
from brim.planning.lengths import padding_efficiency

# Lhotse's default, and as many as its samplers are usually given at most.
LHOTSE_NUM_BUCKETS = (10, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The batches that one batcher made of all samples.

    Attributes:
        padding_efficiency: The share of the tokens that is no padding; of packed rows, the share that is filled.
        num_above: Batches that hold more tokens, padding included, than allowed.
        every_index_once: Whether every sample came exactly once.
        cpu_seconds: For all batches of an epoch, from the lengths on.
    """

    num_batches: int
    padding_efficiency: float
    num_above: int
    every_index_once: bool
    cpu_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain data."""
        return asdict(self)


def batchers(lengths: Sequence[int], max_tokens: int) -> dict[str, Callable[[], Outcome]]:
    """Return every batcher by name, ready to run on the lengths."""
    # Fixed-size batches must allow for the longest sample.
    size = max_tokens // max(lengths)

    def random() -> Iterable[list[int]]:
        return BatchSampler(RandomSampler(lengths), batch_size=size, drop_last=False)

    def grouped() -> Iterable[Sequence[int]]:
        return BatchSampler(LengthGroupedSampler(size, lengths=lengths), batch_size=size, drop_last=False)

    def budgeted() -> Iterable[list[int]]:
        return brim.TokenBudgetSampler(lengths, max_tokens=max_tokens)

    return {
        "random": lambda: _padded(random, lengths, max_tokens),
        "HF LengthGroupedSampler": lambda: _padded(grouped, lengths, max_tokens),
        **{
            f"Lhotse, {number} buckets": lambda number=number: _lhotse(lengths, max_tokens, number)
            for number in LHOTSE_NUM_BUCKETS
        },
        "brim": lambda: _padded(budgeted, lengths, max_tokens),
        "brim, packed": lambda: _packed(lengths, max_tokens),
    }


def _padded(make: Callable[[], Iterable[Sequence[int]]], lengths: Sequence[int], max_tokens: int) -> Outcome:
    torch.manual_seed(0)
    batches, seconds = _timed(make)
    num_above = sum(len(batch) * max(lengths[index] for index in batch) > max_tokens for batch in batches)
    return _outcome(batches, lengths, padding_efficiency(lengths, batches), num_above, seconds)


def _packed(lengths: Sequence[int], max_tokens: int) -> Outcome:
    rows, seconds = _timed(lambda: brim.TokenBudgetSampler(lengths, max_tokens=max_tokens, pack=True))
    num_above = sum(sum(lengths[index] for index in row) > max_tokens for row in rows)
    return _outcome(rows, lengths, sum(lengths) / (len(rows) * max_tokens), num_above, seconds)


def _lhotse(lengths: Sequence[int], max_tokens: int, num_buckets: int) -> Outcome:
    """Run Lhotse on cuts of as many seconds as there are tokens; making the cuts is not counted."""
    cuts = [MonoCut(id=str(index), start=0, duration=length, channel=0) for index, length in enumerate(lengths)]

    def make() -> Iterable[list[int]]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sampler = DynamicBucketingSampler(
                cuts, max_duration=max_tokens, num_buckets=num_buckets, shuffle=True, world_size=1, rank=0
            )
        return ([int(cut.id) for cut in batch] for batch in sampler)

    return _padded(make, lengths, max_tokens)


def _timed(make: Callable[[], Iterable[Sequence[int]]]) -> tuple[list[Sequence[int]], float]:
    # Seconds of this process alone: what else runs on the machine does not count.
    started = time.process_time()
    batches = list(make())
    return batches, time.process_time() - started


def _outcome(
    batches: list[Sequence[int]], lengths: Sequence[int], efficiency: float, num_above: int, seconds: float
) -> Outcome:
    return Outcome(
        num_batches=len(batches),
        padding_efficiency=round(efficiency, 4),
        num_above=num_above,
        every_index_once=sorted(index for batch in batches for index in batch) == list(range(len(lengths))),
        cpu_seconds=round(seconds, 2),
    )
