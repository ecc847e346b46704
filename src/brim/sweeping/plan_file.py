"""The plan on disk: what was understood, so that a resume guesses nothing and results need no sweep file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from brim.errors import InputError, RecordError
from brim.records import ANY, COUNT, TEXT, Each, Leaf, Maybe, check_record, is_whole, one_of
from brim.sweeping.dimensions import GridSpec
from brim.sweeping.grid import Dimension, Grid
from brim.sweeping.plan import Plan
from brim.sweeping.spec import Metric, SweepSpec

PLAN_FILE = "plan.json"
_VERSION = 1
_AGAIN = "Restore it; the sweep in another --out writes a new one."
_COLUMN = Leaf(
    "a list of values, or a range",
    lambda value: isinstance(value, list) or (isinstance(value, dict) and _is_range(value.get("range"))),
)
_SHAPE = {
    "source": Maybe(TEXT),
    "what_runs": TEXT,
    "digest": TEXT,
    "section_digest": TEXT,
    "limit": Maybe(COUNT),
    "dimensions": [{"name": TEXT, "keys": [TEXT], "columns": [_COLUMN], "num_duplicates": COUNT}],
    "exclude": [Each(ANY)],
    "include": [Each(ANY)],
    "base": Maybe(Each(ANY)),  # null where the sweep has none
    "metric": Maybe({"name": TEXT, "goal": one_of("min", "max")}),
    "batch_key": TEXT,
    "auto": Each(ANY),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlan:
    """A plan that was written down.

    Attributes:
        source: The sweep file's path, seen from the directory; None for a sweep that was given in Python.
        digest: The plan's digest when it was written.
    """

    plan: Plan
    source: str | None
    digest: str
    what_runs: str


def write_plan(plan: Plan, directory: Path) -> None:
    """Write the plan down in place of the one before."""
    spec, grid = plan.spec, plan.grid
    document = {
        "version": _VERSION,
        "source": relative_source(spec, directory),
        "what_runs": spec.what_runs,
        "digest": plan.digest,
        "section_digest": spec.grid.digest,
        "limit": plan.limit,
        "dimensions": [_dimension_document(dimension) for dimension in grid.dimensions],
        "exclude": grid.exclude,
        "include": grid.include,
        "base": spec.base,
        "metric": None if spec.metric is None else asdict(spec.metric),
        "batch_key": spec.batch_key,
        "auto": dict(spec.auto),
    }
    new = directory / f"{PLAN_FILE}.new"
    with new.open("w", encoding="utf-8") as file:
        json.dump(document, file, default=str)
        file.flush()
        os.fsync(file.fileno())
    new.replace(directory / PLAN_FILE)


def read_plan(directory: Path) -> StoredPlan:
    """Read what `write_plan` wrote."""
    path = directory / PLAN_FILE
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict) or "version" not in document:
            raise InputError(f"{directory} holds no sweep: its {PLAN_FILE} is of another kind.")
        if document["version"] != _VERSION:
            raise InputError(f"{path} was written by another version of brim ({document['version']}).")
        check_record(document, _SHAPE)
        return _stored(document)
    except FileNotFoundError:
        raise InputError(f"{directory} holds no sweep: there is no {PLAN_FILE} in it.") from None
    except RecordError as error:
        raise error.told_of(str(path), _AGAIN) from error
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read: {error}. {_AGAIN}") from error


def remembered(spec: SweepSpec, stored: StoredPlan) -> SweepSpec:
    """Return the spec with what was guessed before instead of a guess, where its section is unchanged."""
    if spec.grid.guess is None or spec.grid.digest != stored.plan.spec.grid.digest:
        return spec
    return replace(spec, grid=replace(spec.grid, dimensions=stored.plan.grid.dimensions, guess=None))


def relative_source(spec: SweepSpec, directory: Path) -> str | None:
    """Return the sweep file's path as seen from the directory, which stays right when both are moved."""
    return None if spec.source is None else os.path.relpath(spec.source.resolve(), directory.resolve())


def _stored(document: Mapping[str, Any]) -> StoredPlan:
    metric = document["metric"]
    dimensions = tuple(map(_read_dimension, document["dimensions"]))
    spec = SweepSpec(
        source=None,
        command=None,
        function=None,
        workdir=Path(),
        base=document["base"],
        grid=GridSpec(dimensions=dimensions, digest=document["section_digest"]),
        metric=None if metric is None else Metric(**metric),
        batch_key=document["batch_key"],
        auto=document["auto"],
    )
    grid = Grid(dimensions=dimensions, exclude=tuple(document["exclude"]), include=tuple(document["include"]))
    return StoredPlan(
        plan=Plan(spec=spec, grid=grid, limit=document["limit"]),
        source=document["source"],
        digest=document["digest"],
        what_runs=document["what_runs"],
    )


def _is_range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_whole, value))


def _dimension_document(dimension: Dimension) -> dict[str, Any]:
    columns = [
        {"range": [column.start, column.stop]} if isinstance(column, range) else list(column)
        for column in dimension.columns
    ]
    return {
        "name": dimension.name,
        "keys": dimension.keys,
        "columns": columns,
        "num_duplicates": dimension.num_duplicates,
    }


def _read_dimension(document: Mapping[str, Any]) -> Dimension:
    columns: list[Sequence[Any]] = [
        range(*column["range"]) if isinstance(column, dict) else tuple(column) for column in document["columns"]
    ]
    return Dimension(
        name=document["name"],
        keys=tuple(document["keys"]),
        columns=tuple(columns),
        num_duplicates=document["num_duplicates"],
    )
