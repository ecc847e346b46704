"""`sweep:` of a file, or the older flat `grid_search:`, into dimensions, exclusions and inclusions."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brim.errors import InputError
from brim.sweeping.config import canonical
from brim.sweeping.file import check_names
from brim.sweeping.grid import Dimension

# The keys that the older form pairs when their lists are equally long, and what the pair is called.
LEGACY_PAIR = ("model.type", "hp.batch_size")
LEGACY_GROUP = "model_batch"
_LEGACY_NAMES = ("grid", "max_experiments")
_RANGE = re.compile(r"\s*(-?\d+)\s*\.\.\s*(-?\d+)\s*")
_NAMES = ("product", "zip", "exclude", "include", "max_experiments")
_BATCH_NAME = "batch_size"
_PLAIN = (str, int, float, bool, type(None))
# Nobody waits for more trials than these.
_MOST_IN_RANGE = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class GridSpec:
    """What is swept, as the user wrote it.

    Attributes:
        guess: What the older form was taken to mean, where that had to be guessed.
        notes: What else a user should know of how it was read.
        digest: A hash of the section that it was read from.
    """

    dimensions: tuple[Dimension, ...]
    exclude: tuple[Mapping[str, Any], ...] = ()
    include: tuple[Mapping[str, Any], ...] = ()
    max_experiments: int | None = None
    guess: str | None = None
    notes: tuple[str, ...] = ()
    digest: str = ""

    @property
    def keys(self) -> list[str]:
        """Every key of a dimension or an inclusion."""
        swept = [key for dimension in self.dimensions for key in dimension.keys]
        return [*swept, *(key for clause in self.include for key in clause)]


def read_grid(document: Mapping[str, Any]) -> GridSpec:
    """Read the section of a sweep file that says what is swept, in either form."""
    names = [name for name in ("sweep", "grid_search") if document.get(name) is not None]
    if len(names) != 1:
        raise InputError("A sweep needs either `sweep:`, with product or zip below it, or the older `grid_search:`.")
    section = _mapping(document[names[0]], names[0])
    notes: tuple[str, ...] = ()
    if names[0] == "sweep":
        dimensions, guess = read_dimensions(section), None
    else:
        dimensions, guess = read_legacy(section)
        notes = tuple(f"grid_search.{name} is not used." for name in section if name not in _LEGACY_NAMES)
    include = read_clauses(section.get("include"), "include")
    if not dimensions and not include:
        raise InputError("The sweep is empty. Write keys with their values below product or zip.")
    return GridSpec(
        dimensions=dimensions,
        exclude=read_clauses(section.get("exclude"), "exclude"),
        include=include,
        max_experiments=check_limit(section.get("max_experiments"), "max_experiments"),
        guess=guess,
        notes=notes,
        digest=hashlib.sha256(canonical(section).encode()).hexdigest(),
    )


def check_limit(value: Any, name: str) -> int | None:
    """Refuse what is no number of trials."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise InputError(f"{name} is {value!r}. Use a whole number of at least 1.")
    return value


def read_dimensions(sweep: Mapping[str, Any]) -> tuple[Dimension, ...]:
    """Return the dimensions of a `sweep:` section in the order of the file.

    >>> [d.name for d in read_dimensions({"zip": {"pair": {"a": [1, 2], "b": [3, 4]}}, "product": {"c": "2..5"}})]
    ['pair', 'c']
    """
    check_names(sweep, _NAMES, "sweep")
    dimensions: list[Dimension] = []
    for name, section in sweep.items():
        if name == "product":
            dimensions += [_single(key, values) for key, values in _mapping(section, "product").items()]
        elif name == "zip":
            dimensions += [_group(group, keys) for group, keys in _mapping(section, "zip").items()]
    return check_dimensions(dimensions)


def read_legacy(section: Mapping[str, Any]) -> tuple[tuple[Dimension, ...], str | None]:
    """Return the dimensions of the older flat form, and what was guessed where something was.

    >>> grid = {"model.type": ["a", "b"], "hp.batch_size": [8, 4], "hp.lr": [0.1]}
    >>> read_legacy({"grid": grid})[1]
    'paired: 2 trials; product would be 4; say `zip` or `product` to silence this'
    """
    grid = _mapping(section.get("grid"), "grid_search.grid")
    dimensions = {key: _single(key, values) for key, values in grid.items()}
    pair = [dimensions[key] for key in LEGACY_PAIR if key in dimensions]
    if len(pair) == len(LEGACY_PAIR) and len(pair[0]) != len(pair[1]) and min(map(len, pair)) > 1:
        product = check_dimensions(list(dimensions.values()))
        return product, (
            f"{len(pair[0]):,} models and {len(pair[1]):,} batch sizes make no pairs, so every model is run with every "
            f"batch size, in {math.prod(map(len, product)):,} trials: is one forgotten? Say `zip` or `product`"
        )
    if len(pair) < len(LEGACY_PAIR) or len(pair[0]) != len(pair[1]) or len(pair[0]) == 1:
        return check_dimensions(list(dimensions.values())), None
    paired = Dimension(name=LEGACY_GROUP, keys=LEGACY_PAIR, columns=tuple(each.columns[0] for each in pair))
    ordered: dict[str, Dimension] = {}
    for key, dimension in dimensions.items():
        ordered.setdefault(LEGACY_GROUP if key in LEGACY_PAIR else key, paired if key in LEGACY_PAIR else dimension)
    checked = check_dimensions(list(ordered.values()))
    num_paired = math.prod(map(len, checked))
    num_product = math.prod(map(len, dimensions.values()))
    return checked, (
        f"paired: {num_paired:,} trials; product would be {num_product:,}; say `zip` or `product` to silence this"
    )


def check_dimensions(dimensions: Sequence[Dimension]) -> tuple[Dimension, ...]:
    """Return the dimensions without duplicate points; refuse a key that two of them set."""
    seen: dict[str, str] = {}
    for dimension in dimensions:
        for key in dimension.keys:
            if key in seen:
                raise InputError(
                    f"{key} is in two dimensions, {seen[key]} and {dimension.name}. Leave out one of them."
                )
            seen[key] = dimension.name
    return tuple(dimension.without_duplicates() for dimension in dimensions)


def read_clauses(clauses: Any, what: str) -> tuple[dict[str, Any], ...]:
    """Return the mappings of `exclude` or `include`."""
    if clauses is None:
        return ()
    if isinstance(clauses, Mapping):
        raise InputError(f"{what} must be a list of mappings. Write {what}: [{{key: value}}].")
    if not isinstance(clauses, list) or not all(isinstance(clause, Mapping) and clause for clause in clauses):
        raise InputError(f"{what} must be a list of mappings such as [{{model.type: s3d}}], not {clauses!r}.")
    for clause in clauses:
        for key, value in clause.items():
            _check_plain(key, value)
    return tuple(dict(clause) for clause in clauses)


def _group(name: str, keys: Any) -> Dimension:
    columns = {key: _values(key, values) for key, values in _mapping(keys, f"zip.{name}").items()}
    if not columns:
        raise InputError(f"zip.{name} is empty. Write at least one key with its values below it.")
    longest = max(map(len, columns.values()))
    # A value that is not a list is shared by all points of its group.
    shared = {key: values if _is_list(keys[key]) else (values[0],) * longest for key, values in columns.items()}
    if any(len(values) != longest for values in shared.values()):
        told = ", ".join(f"{key} has {len(values)}" for key, values in shared.items())
        raise InputError(
            f"The lists of zip.{name} differ in length: {told}. Give each {longest} values; one value for all is "
            "written without brackets."
        )
    return Dimension(name=name, keys=tuple(columns), columns=tuple(shared.values()))


def _single(key: str, values: Any) -> Dimension:
    return Dimension(name=key, keys=(key,), columns=(_values(key, values),))


def _is_list(values: Any) -> bool:
    return isinstance(values, list) or (isinstance(values, str) and _RANGE.fullmatch(values) is not None)


def _values(key: Any, values: Any) -> tuple[Any, ...] | range:
    """Return a key's values: a list, a range such as 2..13, or one value for all."""
    if not isinstance(key, str):
        raise InputError(f"{key!r} is not a key. Write dotted names such as hp.batch_size.")
    if isinstance(values, str) and (match := _RANGE.fullmatch(values)):
        first, last = int(match[1]), int(match[2])
        if first > last:
            raise InputError(f"{key}: the range {values} is empty, {first} is above {last}. Write {last}..{first}.")
        if last - first >= _MOST_IN_RANGE:
            raise InputError(f"{key}: the range {values} is too long. Use one of at most {_MOST_IN_RANGE:,} values.")
        return range(first, last + 1)
    listed = values if isinstance(values, list) else [values]
    if not listed:
        raise InputError(f"{key} has an empty list: no trial would be left. Give it a value or leave it out.")
    for value in listed:
        _check_plain(key, value)
        if key.rpartition(".")[2] == _BATCH_NAME and not _is_batch(value):
            raise InputError(f"{key}: {value!r} is no batch size. Use a whole number of at least 1, or auto.")
    return tuple(listed)


def _is_batch(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True  # `auto` with its settings, which are looked at where they are read
    if isinstance(value, str):
        return value == "auto" or value.startswith("${")  # what another program fills in
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _check_plain(key: str, value: Any) -> None:
    if isinstance(value, Mapping):
        for each in value.values():
            _check_plain(key, each)
    elif isinstance(value, list):
        for each in value:
            _check_plain(key, each)
    elif not isinstance(value, _PLAIN):
        raise InputError(f"{key}: {value!r} is a {type(value).__name__}. Write it in quotes if it is meant as a text.")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{key}: {value!r} is not a number that a configuration can hold. Use a finite one.")


def _mapping(section: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(section, Mapping):
        raise InputError(f"{what} must be a mapping of keys to lists, not {section!r}.")
    return section
