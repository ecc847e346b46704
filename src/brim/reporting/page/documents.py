"""The documents a report is made of: read, told apart by their schema, refused where brim did not write them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.errors import InputError, RecordError
from brim.records import check_record
from brim.reporting.page.shapes import SHAPES
from brim.sweeping.results import SweepResults

STANDARD_INPUT = "-"
# The documents that are understood, and the command that writes each.
COMMANDS = {
    "brim.findings/1": "brim find … --json",
    "brim.prediction/1": "brim predict … --json",
    "brim.plan/1": "brim plan … --json",
    "brim.sweep/1": "brim sweep results DIR --json",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One document, and where it was read from.

    Attributes:
        where: Its place in a file of several, e.g. `predictions[1]`.
    """

    source: str
    schema: str
    data: dict[str, Any]
    where: str = ""

    def check(self) -> None:
        """Raise a RecordError where a field is not as brim writes it."""
        try:
            check_record(self.data, SHAPES[self.schema], where=self.where)
        except RecordError as error:
            raise error.told_of(self.source, f"Mend it, or write it again: {COMMANDS[self.schema]}.") from error


def read_documents(sources: Sequence[str]) -> list[Document]:
    """Read files, sweep directories and `-` for standard input, in order."""
    return [document for source in sources for document in _read(source)]


def _read(source: str) -> Iterator[Document]:
    path = Path(source)
    if source != STANDARD_INPUT and path.is_dir():
        data = SweepResults.read(path).to_dict()
        yield Document(source=source, schema=data["schema"], data=data)
        return
    data = _parse(source, _text(source))
    schema = _check_schema(source, data)
    several = data.get("predictions")
    if not isinstance(several, list):
        yield Document(source=source, schema=schema, data=data)
        return
    for index, each in enumerate(several):
        yield Document(source=source, schema=schema, data=each, where=f"predictions[{index}]")


def _text(source: str) -> str:
    try:
        return sys.stdin.read() if source == STANDARD_INPUT else Path(source).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror}. {_MAKE_ONE}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{source} is no text. {_MAKE_ONE}") from error


def _parse(source: str, text: str) -> dict[str, Any]:
    if not text.strip():
        raise InputError(f"{source} is empty; the command that should have written it may have failed. {_MAKE_ONE}")
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{source}, line {error.lineno}, is not JSON: {error.msg}. {_MAKE_ONE}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, lists thousands deep
        raise InputError(f"{source} is not JSON that brim writes: {error}. {_MAKE_ONE}") from error
    if not isinstance(data, dict):
        raise InputError(f"{source} is JSON, but no document of brim's. {_MAKE_ONE}")
    return data


def _check_schema(source: str, data: dict[str, Any]) -> str:
    schema = data.get("schema")
    if schema == "brim.error/1":
        raise InputError(f"{source} says that brim failed: {data.get('error')}. Mend that and run it again.")
    if schema in COMMANDS:
        return str(schema)
    if not isinstance(schema, str) or not schema.startswith("brim."):
        raise InputError(f"{source} has no schema of brim's (it says {schema!r}). {_MAKE_ONE}")
    name = schema.partition("/")[0]
    known = next((each for each in COMMANDS if each.startswith(f"{name}/")), None)
    if known is None:
        raise InputError(f"{source} is a {schema}, which no report shows. {_MAKE_ONE}")
    raise InputError(
        f"{source} is a {schema}; this brim knows {known}. Write it again with this brim ({COMMANDS[known]}), "
        "or make the report with the brim that wrote it."
    )


_MAKE_ONE = f"A report is made of what these write: {', '.join(COMMANDS.values())}; or of a sweep's directory."
