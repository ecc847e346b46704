"""What the driver asks of an engine: to run trials somewhere, several at once, and to say how they ended."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from brim.sweeping.outcome import TrialOutcome
from brim.sweeping.trial import TrialRequest

TRIALS_FOLDER = "trials"


class Engine(Protocol):
    """Runs trials; the contract tests in `tests/unit/sweeping` hold for every engine.

    A trial's directory holds its log and its result when its outcome is returned, wherever it ran.
    """

    @property
    def num_running(self) -> int:
        """How many trials were started and have not been returned by `wait`."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether another trial may be started now."""
        ...

    def start(self, request: TrialRequest, directory: Path) -> None:
        """Start a trial in its directory and return at once."""

    def wait(self, timeout_seconds: float) -> list[tuple[str, TrialOutcome]]:
        """Return the trials that ended, by id, after at most so long."""
        ...

    def stop(self) -> None:
        """Ask every trial to end; `wait` then returns them, mostly as interrupted."""

    def close(self) -> None:
        """End what still runs and free what was taken."""
