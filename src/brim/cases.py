"""Cases: settings of the input shape, each answered on its own."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from brim.errors import InputError

CaseValue = int | float | bool | str

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_LARGEST_NUM_CASES = 10_000


class Case(Mapping[str, CaseValue]):
    """One setting of the input shape: an immutable mapping from names to plain values.

    >>> Case({"max_crops": 12, "seq_len": 512})
    Case(max_crops=12, seq_len=512)
    >>> Case({"max_crops": 12}).get("seq_len", 512)
    512
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, CaseValue] | None = None) -> None:
        if values is not None and not isinstance(values, Mapping):
            raise InputError(
                f"A case maps names to values, and {values!r} does not. Use for example {{'seq_len': 512}}."
            )
        self._values = dict(values or {})
        for key, value in self._values.items():
            if not isinstance(key, str) or not isinstance(value, (int, float, bool, str)):
                raise InputError(f"Case {key!r}: {value!r} is not a name with a number, text or truth value.")

    def __getitem__(self, key: str) -> CaseValue:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return f"Case({', '.join(f'{key}={value!r}' for key, value in self._values.items())})"

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self._values.items()) or "default"

    @property
    def key(self) -> str:
        """A text that is equal for equal cases, whatever the order of their names."""
        return json.dumps(self._values, sort_keys=True)


class AskedCase(Case):
    """The same case, which knows what it was asked for.

    >>> case = AskedCase({"seqlen": 512})
    >>> case.get("seq_len", 128), case.unread, case.missed
    (128, ('seqlen',), ('seq_len',))
    """

    __slots__ = ("_asked",)

    def __init__(self, values: Mapping[str, CaseValue] | None = None) -> None:
        super().__init__(values)
        self._asked: dict[str, None] = {}

    def __getitem__(self, key: str) -> CaseValue:
        self._asked[key] = None
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[str]:
        self._asked.update(dict.fromkeys(self._values))
        return super().__iter__()

    @property
    def unread(self) -> tuple[str, ...]:
        """The names that nobody asked for."""
        return tuple(name for name in self._values if name not in self._asked)

    @property
    def missed(self) -> tuple[str, ...]:
        """The names that were asked for and that it does not have."""
        return tuple(name for name in self._asked if name not in self._values)


def parse_cases(flags: Sequence[str], *, start_from: str | None = None) -> list[Case]:
    """Expand `--case` flags into cases; flags of one key add to each other, those of several multiply.

    The first key varies slowest.

    >>> parse_cases(["max_crops=2,4", "px=224"])
    [Case(max_crops=2, px=224), Case(max_crops=4, px=224)]
    >>> parse_cases(["n=1", "n=2"])
    [Case(n=1), Case(n=2)]
    >>> parse_cases(["max_crops=2..13"], start_from="max_crops=12")
    [Case(max_crops=12), Case(max_crops=13)]
    """
    dimensions: dict[str, list[CaseValue]] = {}
    for flag in flags:
        key, values = _parse_flag(flag)
        dimensions[key] = list(dict.fromkeys([*dimensions.get(key, []), *values]))
    num_cases = 1
    for values in dimensions.values():
        num_cases *= len(values)
    if num_cases > _LARGEST_NUM_CASES:
        raise InputError(f"{num_cases:,} cases are too many to probe. Give at most {_LARGEST_NUM_CASES:,}.")
    cases = [Case(dict(zip(dimensions, chosen, strict=True))) for chosen in itertools.product(*dimensions.values())]
    return cases if start_from is None else _skip_before(cases, start_from, dimensions)


def as_cases(cases: Iterable[Mapping[str, CaseValue]] | None) -> list[Case]:
    """Turn what a caller passed as `cases` into a list; None means the one default case."""
    if cases is None:
        return [Case()]
    cases = list(cases) if isinstance(cases, Iterable) and not isinstance(cases, (str, Mapping)) else cases
    if not isinstance(cases, list) or not all(isinstance(case, Mapping) for case in cases):
        raise InputError(f"`cases` must be a list of mappings, not {cases!r}. Use for example [{{'seq_len': 512}}].")
    listed = [case if isinstance(case, Case) else Case(case) for case in cases]
    if not listed:
        raise InputError("The list of cases is empty. Pass at least one, or cases=None for the default case.")
    if len(set(listed)) < len(listed):
        raise InputError("A case is listed twice. Every case is answered once.")
    return listed


def _parse_flag(flag: str) -> tuple[str, list[CaseValue]]:
    key, separator, text = flag.partition("=")
    key = key.strip()
    if not separator or not key.isidentifier():
        raise InputError(f"Case {flag!r} is not KEY=VALUES. Use for example --case max_crops=2,4,6 or max_crops=2..13.")
    values: list[CaseValue] = []
    for part in (part.strip() for part in text.split(",")):
        if not part:
            raise InputError(
                f"Case {flag!r} has a key without a value. Use for example --case {key}=2,4,6 or {key}=2..13."
            )
        match = _RANGE.fullmatch(part)
        if match is None and ".." in part:
            raise InputError(f"Case range {part!r} is not FIRST..LAST of whole numbers. Write for example {key}=2..13.")
        if match is None:
            values.append(_parse_value(part))
            continue
        first, last = int(match[1]), int(match[2])
        if first > last:
            raise InputError(f"Case range {part!r} is empty: {first} is above {last}. Write {last}..{first}.")
        if last - first >= _LARGEST_NUM_CASES:
            raise InputError(f"Case range {part!r} has {last - first + 1:,} values; at most {_LARGEST_NUM_CASES:,}.")
        values.extend(range(first, last + 1))
    if len(set(values)) < len(values):
        raise InputError(f"Case {flag!r} names a value twice. Every case is answered once.")
    return key, values


def _parse_value(text: str) -> CaseValue:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _skip_before(cases: list[Case], start_from: str, dimensions: Mapping[str, list[CaseValue]]) -> list[Case]:
    key, values = _parse_flag(start_from)
    if key not in dimensions:
        known = ", ".join(dimensions) or "none: there is no --case"
        raise InputError(f"--start-from {start_from!r} names no case key. Known: {known}.")
    if len(values) != 1 or values[0] not in dimensions[key]:
        raise InputError(
            f"--start-from {start_from!r} is not one of the values of {key}: {', '.join(map(str, dimensions[key]))}."
        )
    first = dimensions[key].index(values[0])
    return [case for case in cases if dimensions[key].index(case[key]) >= first]
