"""The sweep as the user wrote it, read and checked: what runs, over which grid, and how."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brim.errors import InputError
from brim.sweeping.auto import read_auto
from brim.sweeping.command import read_command
from brim.sweeping.config import check_keys
from brim.sweeping.dimensions import GridSpec, read_grid
from brim.sweeping.file import check_names, read_yaml
from brim.sweeping.policy import Policy
from brim.sweeping.resources import Resources
from brim.units import parse_seconds

# Where the batch size and the model are in a configuration, unless `keys:` says otherwise.
BATCH_KEY = "hp.batch_size"
MODEL_KEY = "model.type"
_NAMES = (
    "command",
    "function",
    "base",
    "workdir",
    "sweep",
    "grid_search",
    "workload",
    "case",
    "keys",
    "on_oom",
    "stop_after",
    "timeout",
    "resources",
    "metric",
    "memory_check",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What makes a trial the best one."""

    name: str
    goal: str = "max"

    @classmethod
    def read(cls, section: Any) -> Metric | None:
        """Read `metric:` of a sweep file: a name, or a mapping of name and goal."""
        if section is None:
            return None
        if isinstance(section, str):
            return cls(name=section)
        if not isinstance(section, Mapping) or not isinstance(section.get("name"), str):
            raise InputError(f"metric is {section!r}. Use a name, or {{name: loss, goal: min}}.")
        check_names(section, ("name", "goal"), "metric")
        if section.get("goal", "max") not in ("max", "min"):
            raise InputError(f"metric.goal is {section['goal']!r}. Use max or min.")
        return cls(name=section["name"], goal=section.get("goal", "max"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSpec:
    """What runs, over which dimensions, and how.

    Attributes:
        source: The sweep file, or None for a sweep that was given in Python.
        base: The configuration that every trial starts from; None where there is none, and every key is welcome.
        auto: What `auto` asks for unless it says otherwise itself.
    """

    source: Path | None
    command: tuple[str, ...] | None
    function: str | None
    workdir: Path
    base: Mapping[str, Any] | None
    grid: GridSpec
    policy: Policy = field(default_factory=Policy)
    resources: Resources = field(default_factory=Resources)
    timeout_seconds: float | None = None
    metric: Metric | None = None
    batch_key: str = BATCH_KEY
    model_key: str = MODEL_KEY
    auto: Mapping[str, Any] = field(default_factory=dict)
    memory_check: Mapping[str, Any] = field(default_factory=dict)

    @property
    def what_runs(self) -> str:
        """The command or the function, as one text."""
        return self.function or shlex.join(self.command or ())


def read_spec(source: str | Path | Mapping[str, Any], *, command: str | None = None) -> SweepSpec:
    """Read a sweep file, or the mapping that one would hold; `command` goes before what it says to run."""
    path = None if isinstance(source, Mapping) else Path(source)
    document = dict(source) if isinstance(source, Mapping) else read_yaml(Path(source), "sweep file")
    if command is not None:
        document = {**document, "command": command, "function": None}
    return _read(document, path=path)


def _read(document: dict[str, Any], *, path: Path | None) -> SweepSpec:
    folder = path.parent if path is not None else Path()
    grid = read_grid(document)
    base = _read_base(document.get("base"), folder)
    if "grid_search" not in document:
        check_names(document, _NAMES, "The sweep file" if path else "The sweep")
    elif base is None:
        # Files of the older form are whole configurations with a section for the grid.
        base = {name: value for name, value in document.items() if name not in _NAMES}
    names = document.get("keys") or {}
    check_names(names, ("batch", "model"), "keys")
    model_key = names.get("model", MODEL_KEY)
    policy = Policy.read(document.get("on_oom"), document.get("stop_after"), model_key=model_key)
    check_keys([*grid.keys, *policy.keys], base if "base" in document else None)
    timeout = document.get("timeout")
    spec = SweepSpec(
        source=path,
        command=read_command(document),
        function=document.get("function"),
        workdir=(folder / document.get("workdir", ".")).resolve(),
        base=base,
        grid=grid,
        policy=policy,
        resources=Resources.read(document.get("resources")),
        timeout_seconds=None if timeout is None else parse_seconds(timeout),
        metric=Metric.read(document.get("metric")),
        batch_key=names.get("batch", BATCH_KEY),
        model_key=model_key,
        auto={name: document[name] for name in ("workload", "case") if name in document},
        memory_check=document.get("memory_check") or {},
    )
    _check_auto(spec)
    return spec


def _read_base(base: Any, folder: Path) -> dict[str, Any] | None:
    if base is None:
        return None
    if isinstance(base, str):
        return read_yaml(folder / base, "base")
    if not isinstance(base, Mapping):
        raise InputError(f"base must be a file or a mapping, not {base!r}.")
    return dict(base)


def _check_auto(spec: SweepSpec) -> None:
    """Refuse an `auto` that cannot be found, before the first trial comes to it."""
    for dimension in spec.grid.dimensions:
        for key, column in zip(dimension.keys, dimension.columns, strict=True):
            if key == spec.batch_key and not isinstance(column, range):
                for value in column:
                    read_auto(value, spec.auto)
