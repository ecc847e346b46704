"""The grid: dimensions that multiply, what is left out and what is added; counted without being expanded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from brim.errors import InputError
from brim.sweeping.config import canonical


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """A key with its values, or a named group of keys whose values go together.

    Attributes:
        columns: For each key its values; all columns are equally long.
        num_duplicates: How many points were dropped because they came before.
    """

    name: str
    keys: tuple[str, ...]
    columns: tuple[Sequence[Any], ...]
    num_duplicates: int = 0

    def __len__(self) -> int:
        return len(self.columns[0])

    def point(self, index: int) -> tuple[Any, ...]:
        """Return the values of one point, in the order of the keys."""
        return tuple(column[index] for column in self.columns)

    def without_duplicates(self) -> Dimension:
        """Return the dimension with every point once."""
        if len(self.columns) == 1 and isinstance(self.columns[0], range):
            return self
        first = dict.fromkeys(map(canonical, zip(*self.columns, strict=True)))
        if len(first) == len(self):
            return self
        kept: dict[str, int] = {}
        for index in range(len(self)):
            kept.setdefault(canonical(self.point(index)), index)
        columns = tuple(tuple(column[index] for index in kept.values()) for column in self.columns)
        return Dimension(
            name=self.name, keys=self.keys, columns=columns, num_duplicates=self.num_duplicates + len(self) - len(kept)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How the number of trials comes about.

    Attributes:
        sizes: The length of every dimension by its name.
        num_product: Their product.
        num_excluded: How many of these are left out.
        num_included: How many are added.
        num_duplicates: How many points and additions were dropped because they came before.
    """

    sizes: Mapping[str, int]
    num_product: int
    num_excluded: int
    num_included: int
    num_duplicates: int

    @property
    def num_trials(self) -> int:
        """What is left."""
        return self.num_product - self.num_excluded + self.num_included

    def __str__(self) -> str:
        """Return the arithmetic in words."""
        text = " × ".join(f"{size:,} {name}" for name, size in self.sizes.items()) or "0"
        if len(self.sizes) > 1 and (self.num_excluded or self.num_included):
            text += f" = {self.num_product:,}"
        text += f"; − {self.num_excluded:,} excluded" if self.num_excluded else ""
        text += f"; + {self.num_included:,} included" if self.num_included else ""
        text += f" = {self.num_trials:,}"
        text += f" trial{'s' if self.num_trials != 1 else ''}"
        if self.num_duplicates:
            text += f" ({self.num_duplicates:,} duplicate{'s' if self.num_duplicates != 1 else ''} dropped)"
        return text


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Every combination of the dimensions' points but the excluded ones, then the included ones, in a fixed order.

    The first dimension varies slowest. Nothing is expanded: counting, iterating and indexing go down the dimensions
    with the set of exclusions that the points chosen so far have not ruled out.

    >>> lr = Dimension(name="lr", keys=("lr",), columns=([0.1, 0.2],))
    >>> pairs = Dimension(name="pairs", keys=("model", "batch"), columns=(["a", "b"], [8, 4]))
    >>> grid = Grid(dimensions=(lr, pairs), exclude=({"lr": 0.2, "model": "a"},))
    >>> len(grid), grid[1]
    (3, {'lr': 0.1, 'model': 'b', 'batch': 4})
    """

    dimensions: tuple[Dimension, ...]
    exclude: tuple[Mapping[str, Any], ...] = ()
    include: tuple[Mapping[str, Any], ...] = ()
    _counted: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def count(self) -> Count:
        """How the number of trials comes about."""
        num_product = math.prod(map(len, self.dimensions)) if self.dimensions else 0
        num_kept = self._num_kept(0, self._all_clauses) if self.dimensions else 0
        num_doubled = len(self.include) - len(self.included)
        return Count(
            sizes={dimension.name: len(dimension) for dimension in self.dimensions},
            num_product=num_product,
            num_excluded=num_product - num_kept,
            num_included=len(self.included),
            num_duplicates=sum(dimension.num_duplicates for dimension in self.dimensions) + num_doubled,
        )

    @cached_property
    def included(self) -> tuple[Mapping[str, Any], ...]:
        """The inclusions that add something."""
        new: dict[str, Mapping[str, Any]] = {}
        for config in self.include:
            if not self._expands_to(config):
                new.setdefault(canonical(config), config)
        return tuple(new.values())

    @property
    def keys(self) -> list[str]:
        """Every key that some trial sets, in order."""
        swept = [key for dimension in self.dimensions for key in dimension.keys]
        return list(dict.fromkeys([*swept, *(key for config in self.include for key in config)]))

    def __len__(self) -> int:
        return self.count.num_trials

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self.dimensions:
            yield from self._walk(0, self._all_clauses, {})
        yield from map(dict, self.included)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self):
            raise IndexError(f"there is no trial {index} of {len(self)}")
        num_kept = self.count.num_product - self.count.num_excluded
        if index >= num_kept:
            return dict(self.included[index - num_kept])
        config: dict[str, Any] = {}
        active = self._all_clauses
        for depth, dimension in enumerate(self.dimensions):
            for position in range(len(dimension)):
                below = self._narrowed(depth, active, position)
                num_below = self._num_kept(depth + 1, below)
                if index < num_below:
                    break
                index -= num_below
            config.update(zip(dimension.keys, dimension.point(position), strict=True))
            active = below
        return config

    def __contains__(self, config: object) -> bool:
        if not isinstance(config, Mapping):
            return False
        return self._expands_to(config) or canonical(config) in map(canonical, self.included)

    def unmatched(self) -> list[Mapping[str, Any]]:
        """Return the exclusions that no combination matches: mostly typing errors."""
        return [
            clause
            for clause, sets in zip(self.exclude, self._matches, strict=True)
            if any(positions is not None and not positions for positions in sets)
        ]

    @cached_property
    def _matches(self) -> tuple[tuple[frozenset[int] | None, ...], ...]:
        """For each exclusion and dimension the positions that match; None where every one does."""
        known = {key for dimension in self.dimensions for key in dimension.keys}
        for clause in self.exclude:
            unknown = next((key for key in clause if key not in known), None)
            if unknown is not None or not clause:
                raise InputError(f"exclude {dict(clause)} must name keys that are swept: {', '.join(sorted(known))}.")
        return tuple(tuple(_matching(dimension, clause) for dimension in self.dimensions) for clause in self.exclude)

    @property
    def _all_clauses(self) -> tuple[int, ...]:
        return tuple(range(len(self._matches)))

    def _narrowed(self, depth: int, active: tuple[int, ...], position: int) -> tuple[int, ...]:
        """Return the exclusions that a point of this dimension leaves possible."""
        if not active:
            return active
        return tuple(
            clause for clause in active if (positions := self._matches[clause][depth]) is None or position in positions
        )

    def _is_excluded(self, depth: int, active: tuple[int, ...]) -> bool:
        """Whether an exclusion is met whatever is chosen from this dimension on."""
        return any(all(positions is None for positions in self._matches[clause][depth:]) for clause in active)

    def _num_kept(self, depth: int, active: tuple[int, ...]) -> int:
        """Return how many combinations of the dimensions from `depth` on are not excluded."""
        if not active:
            return math.prod(map(len, self.dimensions[depth:]))
        if self._is_excluded(depth, active):
            return 0
        known = self._counted.get((depth, active))
        if known is None:
            named = set().union(*(self._matches[clause][depth] or () for clause in active))
            alike = Counter(self._narrowed(depth, active, position) for position in named)
            # Points that no exclusion names are all alike.
            alike[self._narrowed(depth, active, -1)] += len(self.dimensions[depth]) - len(named)
            known = sum(number * self._num_kept(depth + 1, below) for below, number in alike.items() if number)
            self._counted[depth, active] = known
        return known

    def _walk(self, depth: int, active: tuple[int, ...], chosen: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if active and self._is_excluded(depth, active):
            return
        if depth == len(self.dimensions):
            yield chosen.copy()
            return
        dimension = self.dimensions[depth]
        for position in range(len(dimension)):
            chosen.update(zip(dimension.keys, dimension.point(position), strict=True))
            yield from self._walk(depth + 1, self._narrowed(depth, active, position), chosen)

    def _expands_to(self, config: Mapping[str, Any]) -> bool:
        """Whether the configuration is a combination that is not excluded."""
        if not self.dimensions or set(config) != {key for dimension in self.dimensions for key in dimension.keys}:
            return False
        if not all(_matching(dimension, config) for dimension in self.dimensions):
            return False
        wanted = {key: canonical(value) for key, value in config.items()}
        return not any(all(canonical(clause[key]) == wanted[key] for key in clause) for clause in self.exclude)


def _matching(dimension: Dimension, clause: Mapping[str, Any]) -> frozenset[int] | None:
    """Return the positions whose values are those of the clause; None where the clause names no key of it."""
    columns = [
        (column, clause[key]) for key, column in zip(dimension.keys, dimension.columns, strict=True) if key in clause
    ]
    if not columns:
        return None
    positions = frozenset(range(len(dimension)))
    for column, wanted in columns:
        if isinstance(column, range):
            found = not isinstance(wanted, bool) and wanted in column
            positions &= {column.index(int(wanted))} if found else frozenset()
            continue
        text = canonical(wanted)
        positions = frozenset(position for position in positions if canonical(column[position]) == text)
    return positions
