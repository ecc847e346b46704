"""What is asked of the host: a process to start, in a place of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# The mark of a trial in the environment of everything it starts, however far it runs away.
MARK = "BRIM_TRIAL_MARK"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A process to start.

    Attributes:
        name: How the host and its client call it.
        argv: A command; None where `call` is a function.
        call: The address of a function that takes `argument` and returns metrics.
        argument: A file with the function's argument as JSON.
        directory: Where the log, the result and the exit are written.
        workdir: Where the process runs.
        exit_file: Where the host notes the exit for a later sweep, should nobody be left to be told; None for nowhere.
        stamp: What the host writes beside the exit, so that it is not taken for another attempt's.
    """

    name: str
    argv: tuple[str, ...] | None
    call: str | None
    argument: str | None
    result: str
    directory: str
    workdir: str
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: float | None = None
    exit_file: str | None = None
    stamp: int = 0

    def to_json(self) -> str:
        """Return the job as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str | bytes) -> Job:
        """Read what `to_json` wrote."""
        data: dict[str, Any] = json.loads(line)
        return cls(**{**data, "argv": None if data["argv"] is None else tuple(data["argv"])})
