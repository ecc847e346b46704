"""What a trial needs of a machine, and how many fit on one at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brim.errors import InputError
from brim.units import parse_bytes

_NAMES = ("cpus", "gpus", "memory")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one trial needs.

    Attributes:
        cpus: Cores; on Ray also a part of one.
        gpus: GPUs; on Ray also a part of one. None for one where there are GPUs, else none.
        memory_bytes: Memory of the host; None where it is not known before.
    """

    cpus: float = 1
    gpus: float | None = None
    memory_bytes: int | None = None

    @classmethod
    def read(cls, section: Any) -> Resources:
        """Read `resources:` of a sweep file."""
        from brim.sweeping.file import check_names

        if section is None:
            return cls()
        if not isinstance(section, Mapping):
            raise InputError(
                f"resources must be a mapping such as {{cpus: 2, gpus: 1, memory: 8GiB}}, not {section!r}."
            )
        check_names(section, _NAMES, "resources")
        memory = section.get("memory")
        return cls(
            cpus=_number(section.get("cpus", 1), "cpus", zero=False),
            gpus=None if section.get("gpus") is None else _number(section["gpus"], "gpus", zero=True),
            memory_bytes=None if memory is None else parse_bytes(memory),
        )

    def override(self, *, cpus: float | None, gpus: float | None, memory: str | int | None) -> Resources:
        """Return these resources with what else was asked for instead."""
        asked = {"cpus": cpus, "gpus": gpus, "memory": memory}
        given = Resources.read({name: value for name, value in asked.items() if value is not None})
        return Resources(
            cpus=self.cpus if cpus is None else given.cpus,
            gpus=self.gpus if gpus is None else given.gpus,
            memory_bytes=self.memory_bytes if memory is None else given.memory_bytes,
        )

    def __str__(self) -> str:
        parts = [f"{self.cpus:g} CPU{'s' if self.cpus != 1 else ''}"]
        if self.gpus:
            parts.append(f"{self.gpus:g} GPU{'s' if self.gpus != 1 else ''}")
        if self.memory_bytes is not None:
            from brim.units import format_bytes

            parts.append(format_bytes(self.memory_bytes))
        return ", ".join(parts)


def num_at_once(
    needed: Resources, *, num_cores: int, num_gpus: int, free_bytes: int, peak_bytes: int | None, jobs: int | None
) -> int:
    """Return how many trials run at once; at least one, which then has the machine to itself.

    Args:
        needed: What each needs.
        num_cores: The machine's cores.
        num_gpus: The machine's GPUs.
        free_bytes: The memory that was free before the first trial.
        peak_bytes: The most memory that a trial has had so far, which counts where nothing was asked for.
        jobs: The most that the user allows.

    >>> eight = dict(num_cores=8, num_gpus=0, free_bytes=2**34, jobs=None)
    >>> num_at_once(Resources(cpus=2), **eight, peak_bytes=None), num_at_once(Resources(), **eight, peak_bytes=2**33)
    (4, 2)
    """
    limits = [jobs] if jobs is not None else [int(num_cores // needed.cpus)]
    if needed.gpus:
        limits.append(int(num_gpus // needed.gpus))
    memory_bytes = needed.memory_bytes if needed.memory_bytes is not None else peak_bytes
    if memory_bytes:
        limits.append(free_bytes // memory_bytes)
    return max(1, min(limits))


def _number(value: Any, name: str, *, zero: bool) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0 or (value == 0 and not zero):
        raise InputError(f"resources.{name} is {value!r}. Use a number {'of at least' if zero else 'above'} 0.")
    return value
