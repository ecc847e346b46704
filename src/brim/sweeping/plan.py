"""The plan: the trials of a sweep in their order, made one at a time."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from brim.errors import InputError
from brim.sweeping.auto import find_request, read_auto
from brim.sweeping.config import MISSING, canonical, identity, look_up, merge
from brim.sweeping.grid import Grid
from brim.sweeping.spec import SweepSpec

# Up to so many trials are compared one by one with those of an edited sweep, and so many of those gone are named.
_MOST_COMPARED = 100_000
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One experiment of a sweep.

    Attributes:
        id: The hash of the resolved configuration.
        config: What the sweep sets, by dotted key.
        resolved: The whole nested configuration, the base included.
        find: What is asked to find its batch size; None where it has one.
    """

    id: str
    config: Mapping[str, Any]
    resolved: Mapping[str, Any]
    find: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The trials of a sweep.

    Attributes:
        limit: How many of the grid's trials belong to the plan; None for all.
    """

    spec: SweepSpec
    grid: Grid
    limit: int | None = None

    def __len__(self) -> int:
        return len(self.grid) if self.limit is None else min(self.limit, len(self.grid))

    def __iter__(self) -> Iterator[Trial]:
        return map(self.trial, itertools.islice(self.grid, self.limit))

    def trial(self, config: Mapping[str, Any]) -> Trial:
        """Return the trial of one configuration."""
        resolved = merge(self.spec.base or {}, config)
        asked = read_auto(look_up(resolved, self.spec.batch_key), self.spec.auto)
        if asked is None:
            return Trial(id=identity(resolved), config=config, resolved=resolved)
        # What is found belongs to the trial's identity, so the whole question does.
        resolved = merge(resolved, {self.spec.batch_key: {"auto": asked}})
        return Trial(id=identity(resolved), config=config, resolved=resolved, find=find_request(asked, resolved))

    def holds(self, config: Mapping[str, Any], trial_id: str) -> bool:
        """Return whether an earlier trial is still one of the grid's, unchanged."""
        return config in self.grid and self.trial(config).id == trial_id

    @cached_property
    def digest(self) -> str:
        """A text that changes when some trial does."""
        grid = self.grid
        dimensions = [
            [each.keys, [str(column) if isinstance(column, range) else column for column in each.columns]]
            for each in grid.dimensions
        ]
        whole = [dimensions, grid.exclude, grid.include, self.spec.base, self.spec.auto]
        return hashlib.sha256(canonical(whole).encode()).hexdigest()


def make_plan(spec: SweepSpec, *, max_experiments: int | None = None) -> Plan:
    """Return the plan of a sweep; `max_experiments` goes before the file's own."""
    include = tuple(_complete(clause, spec) for clause in spec.grid.include)
    grid = Grid(dimensions=spec.grid.dimensions, exclude=spec.grid.exclude, include=include)
    if len(grid) == 0:
        raise InputError(f"The sweep has no trials: {grid.count}.")
    plan = Plan(spec=spec, grid=grid, limit=max_experiments or spec.grid.max_experiments)
    plan.trial(grid[0])  # what is wrong with every trial is said before the first one runs
    return plan


def describe_edit(before: Plan, after: Plan) -> str:
    """Return how many trials an edited sweep has gained, kept and lost; of very many, only how many there are."""
    if max(len(before.grid), len(after.grid)) > _MOST_COMPARED:
        return f"{len(before.grid):,} trials before, {len(after.grid):,} now"
    gone = [config for config in before.grid if not after.holds(config, before.trial(config).id)]
    num_kept = len(before.grid) - len(gone)
    told = f"{len(after.grid) - num_kept:,} new, {num_kept:,} kept, {len(gone):,} gone"
    if not gone:
        return told
    named = "; ".join(" ".join(f"{key}={value}" for key, value in config.items()) for config in gone[:_MOST_NAMED])
    return f"{told} ({named}{'; …' if len(gone) > _MOST_NAMED else ''})"


def _complete(clause: Mapping[str, Any], spec: SweepSpec) -> dict[str, Any]:
    """Return an inclusion with what the base says for the keys it does not name, so that equal trials look alike."""
    swept = [key for dimension in spec.grid.dimensions for key in dimension.keys]
    base = spec.base or {}
    complete = {key: clause.get(key, look_up(base, key)) for key in swept}
    for key, value in clause.items():
        said = look_up(base, key)
        if key not in swept and (said is MISSING or canonical(said) != canonical(value)):
            complete[key] = value
    return {key: value for key, value in complete.items() if value is not MISSING}
