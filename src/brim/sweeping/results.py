"""What came out: the plan's trials with what the journal says of each."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from brim.errors import InputError
from brim.sweeping.config import nearest
from brim.sweeping.journal import is_locked, last_events
from brim.sweeping.outcome import ExitKind, TrialOutcome
from brim.sweeping.plan import Plan, Trial
from brim.sweeping.plan_file import read_plan
from brim.sweeping.spec import Metric

SCHEMA = "brim.sweep/1"
PLANNED = "planned"
RUNNING = "running"
PREDICTED_OOM = "predicted_oom"
# Up to so many trials a sweep is shown in the order of its plan; of a larger one only what was begun.
MOST_LISTED = 10_000
# Metrics of which less is better, by a part of their name.
_SMALLER_IS_BETTER = ("loss", "error", "perplexity", "seconds", "latency", "bytes", "mse", "mae", "wer", "cer")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """What is known of one trial.

    Attributes:
        status: `planned`, `running`, `predicted_oom`, or the kind of its exit.
        attempt: How often it was started.
        effective: Values that were used instead of the requested ones, by key.
        peak_bytes: The most memory that the largest of its processes had on the host.
    """

    id: str
    config: Mapping[str, Any]
    status: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    effective: Mapping[str, Any] = field(default_factory=dict)
    peak_bytes: int | None = None
    exit_code: int | None = None
    detail: str | None = None
    where: str = ""
    attempt: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return asdict(self)


class SweepResults:
    """The results of a sweep, read from its directory whenever they are asked for.

    Attributes:
        directory: Where everything lies.
        num_trials: All trials of the plan.
        metric: What makes a trial the best one, where the sweep says so.

    Args:
        limit: How many of the plan's trials are read; None for all.
    """

    def __init__(self, plan: Plan, directory: Path, *, limit: int | None = None) -> None:
        self.plan = plan
        self.directory = directory
        self._limit = limit

    @classmethod
    def read(cls, directory: str | Path) -> SweepResults:
        """Return the results in a sweep's directory, in the order of its plan."""
        return cls(read_plan(Path(directory)).plan, Path(directory))

    def __iter__(self) -> Iterator[TrialResult]:
        left = self._left
        with last_events(self.directory) as events:
            for trial in itertools.islice(self.plan, self._limit):
                yield _result(trial, events.get(trial.id), left)

    def begun(self) -> Iterator[TrialResult]:
        """Yield the trials that were started or skipped, by when they first were, without reading the whole plan."""
        left = self._left
        with last_events(self.directory) as events:
            for event in events:
                if self.plan.holds(event["config"], event["trial"]):
                    yield _result(self.plan.trial(event["config"]), event, left)

    def __len__(self) -> int:
        return self.num_trials if self._limit is None else min(self._limit, self.num_trials)

    @property
    def num_trials(self) -> int:
        """How many trials the plan has."""
        return len(self.plan)

    @property
    def metric(self) -> Metric | None:
        """What makes a trial the best one, where the sweep says so."""
        return self.plan.spec.metric

    @property
    def _left(self) -> str:
        """The status of trials that were started and did not end."""
        return RUNNING if is_locked(self.directory) else ExitKind.INTERRUPTED.value

    @cached_property
    def trials(self) -> tuple[TrialResult, ...]:
        """All of them, as they were when they were first asked for."""
        return tuple(self)

    @property
    def best(self) -> TrialResult | None:
        """The best trial that is done, by the sweep's metric, or None where there is none."""
        return overview(self).best

    def to_dict(self) -> dict[str, Any]:
        """Return the document `brim.sweep/1`."""
        return {
            "schema": SCHEMA,
            "directory": str(self.directory),
            "num_trials": self.num_trials,
            "trials": [trial.to_dict() for trial in self.trials],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What a screen shows of a sweep.

    Attributes:
        rows: The first of its trials; only those that were begun, where any was.
        statuses: How many trials are in which state.
        best: The best trial that is done.
    """

    rows: tuple[TrialResult, ...]
    statuses: Mapping[str, int]
    best: TrialResult | None


def overview(results: SweepResults, *, most_rows: int = 0) -> Overview:
    """Return what a screen shows, in constant memory however many trials there are."""
    rows: list[TrialResult] = []
    statuses: Counter[str] = Counter()
    best = None
    for trial in results if results.num_trials <= MOST_LISTED else results.begun():
        statuses[trial.status] += 1
        if trial.status != PLANNED and len(rows) < most_rows:
            rows.append(trial)
        if is_better(trial, best, results.metric):
            best = trial
    if num_planned := results.num_trials - (statuses.total() - statuses[PLANNED]):
        statuses[PLANNED] = num_planned
    if not rows:
        rows = list(itertools.islice(results, most_rows))
    return Overview(rows=tuple(rows), statuses=statuses, best=best)


def is_better(trial: TrialResult, best: TrialResult | None, metric: Metric | None) -> bool:
    """Return whether a trial is done and better than the best so far."""
    if metric is None or trial.status != ExitKind.DONE or not is_number(trial.metrics.get(metric.name)):
        return False
    if best is None:
        return True
    value, so_far = trial.metrics[metric.name], best.metrics[metric.name]
    return bool(value > so_far if metric.goal == "max" else value < so_far)


def result_of(trial: Trial, attempt: int, outcome: TrialOutcome) -> TrialResult:
    """Return the result of a trial whose attempt ended."""
    return TrialResult(
        id=trial.id,
        config=trial.config,
        status=outcome.kind.value,
        metrics=outcome.metrics,
        seconds=outcome.seconds,
        effective=outcome.effective,
        peak_bytes=outcome.peak_bytes,
        exit_code=outcome.exit_code,
        detail=outcome.detail,
        where=outcome.where,
        attempt=attempt,
    )


def sort_results(results: SweepResults, key: str, *, reverse: bool = False) -> list[TrialResult]:
    """Return the trials by a metric, best first, or by a key, smallest first; what lacks it or failed comes last."""
    columns = _columns(results)
    if key == "metric":
        if results.metric is None:
            measured = list(dict.fromkeys(name for trial in results.trials for name in trial.metrics))
            told = f" Sort by one of its metrics: {', '.join(measured)}." if measured else ""
            raise InputError(f"The sweep names no metric to sort by; write `metric: NAME` into its file.{told}")
        key = results.metric.name
    if key not in columns:
        raise InputError(f"No trial has {key!r} to sort by. {nearest(key, columns)}")
    is_metric = any(key in trial.metrics for trial in results.trials)
    descending = (is_metric and not smaller_is_better(key, results.metric)) != reverse
    placed: list[TrialResult] = []
    lacking: list[TrialResult] = []
    for trial in results.trials:
        counts = not is_metric or trial.status == ExitKind.DONE
        (placed if counts and _order(_value(trial, key)) is not None else lacking).append(trial)
    return sorted(placed, key=lambda trial: _order(_value(trial, key)) or (), reverse=descending) + lacking


def smaller_is_better(name: str, metric: Metric | None) -> bool:
    """Return whether less of a metric is better: as the sweep says, else by its name."""
    if metric is not None and metric.name == name:
        return metric.goal == "min"
    return any(part in name.lower() for part in _SMALLER_IS_BETTER)


def _columns(results: SweepResults) -> list[str]:
    found = ["status", "seconds", "peak_bytes"]
    for trial in results.trials:
        found += [*trial.config, *trial.metrics]
    return list(dict.fromkeys(found))


def _value(trial: TrialResult, key: str) -> Any:
    if key in trial.metrics:
        return trial.metrics[key]
    if key in trial.config:
        return trial.effective.get(key, trial.config[key])
    return getattr(trial, key, None) if key in ("status", "seconds", "peak_bytes") else None


def _order(value: Any) -> tuple[int, Any] | None:
    """Return what orders values of several types; None for what comes last."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    return (0, value) if isinstance(value, (int, float)) else (1, str(value))


def is_number(value: Any) -> bool:
    """Return whether a metric can be compared."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _result(trial: Trial, event: Mapping[str, Any] | None, left: str) -> TrialResult:
    if event is None:
        return TrialResult(id=trial.id, config=trial.config, status=PLANNED)
    if event["event"] == "started":
        return TrialResult(id=trial.id, config=trial.config, status=left, attempt=event["attempt"])
    if event["event"] == "skipped":
        return TrialResult(id=trial.id, config=trial.config, status=event["status"], detail=event["detail"])
    result = result_of(trial, event["attempt"], TrialOutcome.from_dict(event["outcome"]))
    return result if event["again"] is None else replace(result, status=left)
