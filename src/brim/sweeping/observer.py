"""Who is told what while a sweep runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from brim.sweeping.plan import Trial
from brim.sweeping.results import TrialResult
from brim.sweeping.spec import Metric
from brim.units import format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a sweep is about to do.

    Attributes:
        num_trials: All trials of the plan.
        num_ended: Those that ended in an earlier run and are not run again.
    """

    directory: str
    num_trials: int
    num_ended: int
    metric: Metric | None


class SweepObserver(Protocol):
    """Told of every step of a sweep, in order."""

    def started(self, outlook: Outlook) -> None:
        """Hear what is about to be run."""

    def trial_started(self, trial: Trial, attempt: int) -> None:
        """Hear that an attempt at a trial begins."""

    def trial_ended(self, result: TrialResult, following: str | None) -> None:
        """Hear how an attempt ended, and why the trial runs again where it does."""

    def ended(self) -> None:
        """Hear that nothing is left to run."""

    def note(self, message: str) -> None:
        """Hear what a user may want to know."""

    def warn(self, message: str) -> None:
        """Hear what a user should know."""


class LogSweepObserver:
    """Writes a line for each trial to the logger `brim`."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("brim")
        self._num_ended = 0
        self._num_trials = 0

    def started(self, outlook: Outlook) -> None:
        """Log how many trials there are."""
        self._num_trials, self._num_ended = outlook.num_trials, outlook.num_ended
        before = f", {outlook.num_ended:,} of them before" if outlook.num_ended else ""
        trials = f"{outlook.num_trials:,} trial{'s' if outlook.num_trials != 1 else ''}"
        self._logger.info("%s%s, in %s", trials, before, outlook.directory)

    def trial_started(self, trial: Trial, attempt: int) -> None:
        """Log nothing: the line of its end will say it."""

    def trial_ended(self, result: TrialResult, following: str | None) -> None:
        """Log how the attempt ended."""
        if following is None:
            self._num_ended += 1
        self._logger.info("%s/%s %s", self._num_ended, self._num_trials, describe_result(result, following))

    def ended(self) -> None:
        """Log nothing: results follow."""

    def note(self, message: str) -> None:
        """Log at level INFO."""
        self._logger.info("%s", message)

    def warn(self, message: str) -> None:
        """Log at level WARNING."""
        self._logger.warning("%s", message)


def describe_result(result: TrialResult, following: str | None = None) -> str:
    """Return one line for a trial that ended."""
    mark = {"done": "✓", "oom": "✗", "host_oom": "✗", "predicted_oom": "–"}.get(result.status, "!")
    line = f"{mark} {describe_config(result.config, result.effective)}: {result.status}"
    if result.metrics:
        line += " " + " ".join(f"{name}={format_value(value)}" for name, value in result.metrics.items())
    if result.seconds is not None:
        line += f" ({format_seconds(result.seconds)})"
    if result.detail and result.status != "done":
        line += f" {result.detail}"
    return line if following is None else f"{line}; {following}"


def describe_config(config: Mapping[str, Any], effective: Mapping[str, Any]) -> str:
    """Return a configuration on one line, with what was used where that is something else.

    >>> describe_config({"model.type": "s3d", "hp.batch_size": "auto"}, {"hp.batch_size": 24})
    'model.type=s3d hp.batch_size=auto→24'
    """
    parts = []
    for key in dict.fromkeys((*config, *effective)):
        asked = format_value(config[key]) if key in config else ""
        used = f"→{format_value(effective[key])}" if key in effective else ""
        parts.append(f"{key}={asked}{used}")
    return " ".join(parts)


def format_value(value: Any) -> str:
    """Return a value as short as it can be read.

    >>> format_value(0.123456789), format_value({"auto": {"cap": 64}}), format_value(None)
    ('0.1235', 'auto', 'none')
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping) and set(value) == {"auto"}:
        return "auto"
    return "none" if value is None else str(value)
