"""`brim.toml`: found, read, checked line by line, written without touching what people put into it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import ParseError

from brim.errors import DeviceError, InputError, PlanFileError
from brim.planning.batch_plan import BatchPlan, check_count, fewest_microbatches
from brim.planning.expectation import Expectation
from brim.planning.profiles import check_profile
from brim.project.plan_book import FAILED, PASSED, KeptPlan, PlanBook
from brim.units import format_bytes, format_count, parse_bytes, parse_seconds

FILE_NAME = "brim.toml"
_HEADER = """\
# The batch plans of this project, oldest first; brim.active_plan() reads the active one.
# `brim plan … --save` adds one, `brim plan history` lists them, `brim plan rollback` goes back to one that ran well.
active = 0

"""
_REQUIRED = {"number": int, "made": datetime, "microbatch": int, "accumulation": int, "ranks": int, "effective": int}
_OPTIONAL = {
    "source": str,
    "profile": str,
    "gpu": str,
    "memory": str,
    "peak": list,
    "verdict": str,
    "judged": datetime,
    "step": str,
}
_TYPES = {int: "a whole number", str: "a text in quotes", list: "a list of two", datetime: "a date with its time"}


def find_file(start: Path | None = None) -> Path | None:
    """Return the nearest `brim.toml` in a folder or above it, no further than its repository."""
    folder = (start or Path.cwd()).resolve()
    for each in (folder, *folder.parents):
        if (each / FILE_NAME).is_file():
            return each / FILE_NAME
        if (each / ".git").exists():
            return None
    return None


def read_book(path: Path) -> PlanBook:
    """Return the plans of a file; what makes no sense is refused with its line."""
    text = _text(path)
    document = _parse(path, text)
    entries = document.get("plan", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise PlanFileError(path, _line_of(text, "plan"), "plans are written as [[plan]], each with its keys below")
    plans = tuple(_Entry(path, text, index, entry).plan() for index, entry in enumerate(entries))
    numbers = [plan.number for plan in plans]
    for index, number in enumerate(numbers):
        if number in numbers[:index]:
            raise PlanFileError(path, _line_of(text, "number", index), f"a second plan has the number {number}")
    active = document.get("active")
    if plans and active not in numbers:
        known = ", ".join(map(str, numbers))
        raise PlanFileError(path, _line_of(text, "active"), f"active is {active!r}, and the plans are {known}")
    return PlanBook(plans=plans, active_number=active if plans else None)


def write_book(path: Path, book: PlanBook) -> None:
    """Write the plans; comments, and whatever else stands in the file, stay as they are."""
    text = _text(path) if path.exists() else _HEADER
    document = tomlkit.parse(text)
    document["active"] = book.active_number
    entries = document.setdefault("plan", tomlkit.aot())
    for index, plan in enumerate(book.plans):
        values = _values(plan)
        if index < len(entries):
            for key, value in values.items():
                if entries[index].get(key) != value:
                    entries[index][key] = value
            continue
        table = tomlkit.table()
        table.update(values)
        entries.append(table)
    _replace(path, re.sub(r"(?<!\n)\n\[\[plan\]\]", "\n\n[[plan]]", tomlkit.dumps(document)))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise DeviceError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text in UTF-8. Restore it from version control.") from error


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomlkit.parse(text).unwrap()
    except ParseError as error:
        what = re.sub(r" at line \d+ col \d+", "", str(error))
        raise PlanFileError(path, error.line, f"this is not TOML: {what}") from error


def _replace(path: Path, text: str) -> None:
    """Write all of a file or nothing."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise DeviceError(f"{path} cannot be written: {error.strerror}. The plan was not kept.") from error


def _values(plan: KeptPlan) -> dict[str, Any]:
    values: dict[str, Any] = {
        "number": plan.number,
        "made": plan.made,
        "microbatch": plan.plan.microbatch,
        "accumulation": plan.plan.accumulation,
        "ranks": plan.plan.ranks,
        "effective": plan.plan.effective,
        "source": plan.source or None,
        "profile": plan.profile,
        "verdict": plan.verdict,
        "judged": plan.judged,
        "step": None if plan.step_seconds is None else f"{plan.step_seconds * 1000:.4g} ms",
    }
    if plan.expected is not None:
        if plan.expected.gpu is not None:
            values["gpu"] = plan.expected.gpu
        values["memory"] = format_bytes(plan.expected.memory_bytes)
        values["peak"] = [format_bytes(plan.expected.peak_low_bytes), format_bytes(plan.expected.peak_high_bytes)]
    return {key: value for key, value in values.items() if value is not None}


def _line_of(text: str, key: str, index: int | None = None) -> int:
    """Return the line of a key, at the top or in the plan with an index; where that lacks it, its first line."""
    lines = text.splitlines()
    heads = [number for number, line in enumerate(lines) if re.match(r"\s*\[\[\s*plan\s*\]\]", line)]
    # Plans that are no [[plan]] but a list in one line have no heads.
    first = heads[index] if index is not None and index < len(heads) else 0
    last = next((head for head in heads if head > first), len(lines))
    wanted = re.compile(rf"\s*(\[\s*{re.escape(key)}\s*\]|[\"']?{re.escape(key)}[\"']?\s*=)")
    return next((number for number in range(first, last) if wanted.match(lines[number])), first) + 1


class _Entry:
    """One `[[plan]]`, and where it stands."""

    def __init__(self, path: Path, text: str, index: int, values: Mapping[str, Any]) -> None:
        self._path, self._text, self._index, self._values = path, text, index, values

    def plan(self) -> KeptPlan:
        """Return the plan; refuse the first thing that makes no sense."""
        values = self._values
        for key in values:
            if key not in (_REQUIRED | _OPTIONAL):
                raise self._error(key, f"there is no key {key!r}. Known: {', '.join(_REQUIRED | _OPTIONAL)}")
        for key, kind in (_REQUIRED | _OPTIONAL).items():
            if key in _REQUIRED and key not in values:
                raise self._error(key, f"this plan lacks {key}")
            if key in values and (not isinstance(values[key], kind) or isinstance(values[key], bool)):
                raise self._error(key, f"{key} is {values[key]!r}, and should be {_TYPES[kind]}")
            if key in values and kind is int:
                self._made(key, partial(check_count, key, values[key]))
        if values.get("verdict", PASSED) not in (PASSED, FAILED):
            raise self._error("verdict", f"verdict is {values['verdict']!r}. Use {PASSED} or {FAILED}")
        if "profile" in values:
            self._made("profile", lambda: check_profile(values["profile"]))
        return KeptPlan(
            number=values["number"],
            made=values["made"],
            plan=self._batch_plan(),
            source=values.get("source", ""),
            profile=values.get("profile"),
            expected=self._expectation(),
            verdict=values.get("verdict"),
            judged=values.get("judged"),
            step_seconds=self._made("step", lambda: parse_seconds(values["step"])) if "step" in values else None,
        )

    def _batch_plan(self) -> BatchPlan:
        values = self._values
        made: BatchPlan = self._made(
            "effective", lambda: BatchPlan(**{key: values[key] for key in ("effective", "accumulation", "ranks")})
        )
        if made.microbatch != values["microbatch"]:
            raise self._error(
                "microbatch",
                f"effective {made.effective:,} over {format_count(made.ranks, 'rank')} in {made.accumulation:,} "
                f"microbatches is microbatch {made.microbatch:,}, not {values['microbatch']:,}"
                + self._other_accumulation(made, values["microbatch"]),
            )
        return made

    def _other_accumulation(self, made: BatchPlan, microbatch: int) -> str:
        """Say which accumulation would go with the microbatch, for nobody knows which of the two is the mistake."""
        wanted = fewest_microbatches(made.effective, largest=microbatch, ranks=made.ranks)
        if replace(made, accumulation=wanted).microbatch != microbatch:
            return ""
        return f"; or accumulation, in line {_line_of(self._text, 'accumulation', self._index)}, should be {wanted:,}"

    def _expectation(self) -> Expectation | None:
        values = self._values
        for key, other in (("peak", "memory"), ("memory", "peak")):
            if key in values and other not in values:
                raise self._error(key, f"{key} goes with {other}, which is missing")
        if "peak" not in values:
            return None
        if len(values["peak"]) != 2:
            raise self._error("peak", f"peak is {values['peak']!r}, and should be [least, most]")
        memory_bytes = self._made("memory", lambda: parse_bytes(values["memory"]))
        low, high = self._made("peak", lambda: [parse_bytes(size) for size in values["peak"]])
        if low > min(high, memory_bytes):
            raise self._error("peak", "peak should be [least, most], and least no more than memory")
        return Expectation(memory_bytes=memory_bytes, peak_low_bytes=low, peak_high_bytes=high, gpu=values.get("gpu"))

    def _made(self, key: str, make: Any) -> Any:
        try:
            return make()
        except InputError as error:
            raise self._error(key, str(error).rstrip(".")) from error

    def _error(self, key: str, what: str) -> PlanFileError:
        return PlanFileError(self._path, _line_of(self._text, key, self._index), what)
