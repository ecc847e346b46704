"""What would make a job fit that does not: the cheapest changes with which its own record fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from types import MappingProxyType

from brim.tracing.allocator import AllocatorFullError, replay
from brim.tracing.changes import (
    TracedJob,
    checkpointed,
    in_half_precision,
    sharded,
    with_autocast,
    with_eight_bits,
    without_foreach,
)
from brim.units import format_bytes

_EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
# Half precision is worth naming where float32 that it would halve holds at least this share of the peak.
_DOMINATES = 0.5
# More GPUs than this are no longer a change to one job.
_MOST_RANKS = 1024
# A change that saves less than this share of the peak, whatever else is changed, is not named.
_WORTH_NAMING = 0.01

_Apply = Callable[[TracedJob, Sequence[int]], list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change that may make a job fit.

    Attributes:
        name: How it is told.
        apply: What it makes of the sizes of the storages; None where it changes the allocator alone.
        is_bound: Whether the job saves that much at best.
    """

    name: str
    apply: _Apply | None = None
    is_bound: bool = False


_BFLOAT16 = Change(name="pure bfloat16 training", apply=in_half_precision, is_bound=True)


class Remedies:
    """The changes that a job can be given, tried on its record.

    Args:
        job: The job's record at the microbatch that does not fit.
        capacity_bytes: What torch's allocator can have.
        workspaces: Bytes that libraries take from it first.
        expandable: Whether its segments are expandable as it is.
    """

    def __init__(
        self,
        job: TracedJob,
        *,
        capacity_bytes: int,
        workspaces: Mapping[int, int] = MappingProxyType({}),
        expandable: bool = False,
    ) -> None:
        self._job = job
        self._capacity_bytes = capacity_bytes
        self._workspaces = workspaces
        self._expandable = expandable
        self._peak_bytes = job.peak_bytes(job.sizes)

    def advice(self) -> str:
        """Return the cheapest change that makes the job fit, else the shortest combination, else what is still missing.

        Each is a part of a sentence about the job.
        """
        changes = [change for change in self._changes() if self._applies(change)]
        # What is in 16 bits throughout has nothing left to cast.
        most = [change for change in changes if change.apply is not with_autocast or _BFLOAT16 not in changes]
        chosen = self._cheapest(changes) if self._has_room(self._sizes(most)) else None
        if chosen is not None:
            return self._told(chosen)
        shards = _sharding(_MOST_RANKS)  # more GPUs are dearer than all else together
        if not self._applies(shards):
            return self._shortfall(most)
        chosen = self._cheapest(changes, shards) if self._has_room(self._sizes([*most, shards])) else None
        return self._shortfall([*most, shards]) if chosen is None else self._told(self._with_fewest_ranks(chosen))

    def _cheapest(self, changes: Sequence[Change], *always: Change) -> Sequence[Change] | None:
        """Return the fewest changes with which the job fits, beside those that are made in any case."""
        for num_changes in range(len(changes) + 1):
            for some in combinations(changes, num_changes):
                chosen = [*some, *always]
                casts_twice = _BFLOAT16 in some and any(change.apply is with_autocast for change in some)
                if chosen and not casts_twice and self._fits(chosen):
                    return chosen
        return None

    def _applies(self, change: Change) -> bool:
        return change.apply is None or change.apply(self._job, self._job.sizes) != self._job.sizes

    def _changes(self) -> Iterator[Change]:
        """Yield what applies to this job, from the cheapest on; sharding, the dearest, aside."""
        job = self._job
        if not self._expandable:
            yield Change(name=_EXPANDABLE)
        if not job.is_training:
            if job.share_of_float32() >= _DOMINATES:
                yield Change(name="half precision", apply=in_half_precision, is_bound=True)
            return
        yield Change(name="foreach=False in the optimizer", apply=without_foreach)
        if "optimizer" in job.kinds:
            yield Change(name="an 8-bit optimizer", apply=with_eight_bits)
        if not job.recomputes:
            yield Change(name="checkpointing", apply=checkpointed, is_bound=True)
        if job.share_of_float32("activations") >= _DOMINATES:
            yield Change(name="autocast to half precision", apply=with_autocast, is_bound=True)
        if job.share_of_float32() >= _DOMINATES:
            yield _BFLOAT16

    def _with_fewest_ranks(self, changes: Sequence[Change]) -> Sequence[Change]:
        """Return changes, the last of which is sharding, with the fewest GPUs that still do."""
        low, high = 1, _MOST_RANKS
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._fits([*changes[:-1], _sharding(middle)]) else (middle, high)
        return [*changes[:-1], _sharding(high)]

    def _has_room(self, sizes: Sequence[int]) -> bool:
        """Return whether the tensors alone fit, whatever the allocator does."""
        return self._job.peak_bytes(sizes) + sum(self._workspaces.values()) <= self._capacity_bytes

    def _fits(self, changes: Sequence[Change]) -> bool:
        sizes = self._sizes(changes)
        if not self._has_room(sizes):
            return False
        expandable = self._expandable or any(change.apply is None for change in changes)
        try:
            replay(
                self._job.events(sizes),
                workspaces=self._workspaces,
                repetition=self._job.repetition,
                cache_drops=self._job.record.cache_drops,
                capacity_bytes=self._capacity_bytes,
                expandable=expandable,
            )
        except AllocatorFullError:
            return False
        return True

    def _sizes(self, changes: Sequence[Change]) -> Sequence[int]:
        sizes: Sequence[int] = self._job.sizes
        for change in changes:
            if change.apply is not None:
                sizes = change.apply(self._job, sizes)
        return sizes

    def _told(self, changes: Sequence[Change]) -> str:
        left_bytes = self._job.peak_bytes(self._sizes(changes))
        if left_bytes == self._peak_bytes:
            return f"{_listed(changes)} would make it fit, as what is missing lies between tensors"
        at_best = ", at best" if any(change.is_bound for change in changes) else ""
        held = f"{format_bytes(left_bytes)} instead of {format_bytes(self._peak_bytes)}"
        return f"{_listed(changes)} would make it fit, with tensors of {held}{at_best}"

    def _shortfall(self, changes: Sequence[Change]) -> str:
        needed_bytes = self._job.peak_bytes(self._sizes(changes))
        useful = [
            change
            for change in changes
            if self._job.peak_bytes(self._sizes([other for other in changes if other is not change]))
            > needed_bytes + _WORTH_NAMING * self._peak_bytes
        ]
        larger = "it takes a larger GPU, a smaller model or smaller inputs"
        if not useful:
            return f"no change that brim knows of would help; {larger}"
        missing_bytes = needed_bytes + sum(self._workspaces.values()) - self._capacity_bytes
        missed = f"miss by about {format_bytes(missing_bytes)}" if missing_bytes > 0 else "leave it too fragmented"
        return f"even {_listed(useful)}{' together' if len(useful) > 1 else ''} would {missed}; {larger}"


def _sharding(num_ranks: int) -> Change:
    return Change(
        name=f"sharding over {num_ranks:,} GPUs (FSDP)", apply=partial(sharded, num_ranks=num_ranks), is_bound=True
    )


def _listed(changes: Sequence[Change]) -> str:
    names = [change.name for change in changes]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
