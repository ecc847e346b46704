"""Sweeps as tables and CSV."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from brim.sweeping.memory_check import Need
from brim.sweeping.observer import format_value
from brim.sweeping.results import TrialResult
from brim.units import format_bytes, format_seconds

# Trials in a table; a screen of more is read by nobody, and `--csv` has them all.
MOST_ROWS = 200
_STYLES = {
    "done": "green",
    "oom": "red",
    "host_oom": "red",
    "planned": "dim",
    "running": "cyan",
    "predicted_oom": "dim",
}
_CSV_COLUMNS = ("id", "status", "seconds", "peak_bytes", "attempt", "where", "detail")


def plan_table(trials: Sequence[TrialResult], needs: Mapping[str, Need]) -> Table:
    """Return the trials that would run, with what each should need of the device."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("#", justify="right", style="dim")
    keys = _keys(trials)
    for key in keys:
        table.add_column(escape(key))
    has_run = any(trial.status != "planned" for trial in trials)
    if needs:
        table.add_column("memory", justify="right")
    if has_run:
        table.add_column("status")
    for number, trial in enumerate(trials[:MOST_ROWS], start=1):
        row: list[str | Text] = [str(number), *(_value(trial, key) for key in keys)]
        if needs:
            row.append(_need(needs.get(trial.id)))
        if has_run:
            row.append(_status(trial))
        table.add_row(*row)
    return table


def results_table(trials: Sequence[TrialResult]) -> Table:
    """Return what came out of every trial."""
    table = Table(box=box.SIMPLE_HEAD)
    keys, metrics = _keys(trials), _metrics(trials)
    for key in keys:
        table.add_column(escape(key))
    table.add_column("status")
    for name in metrics:
        table.add_column(escape(name), justify="right", style="bold")
    table.add_column("time", justify="right")
    table.add_column("peak", justify="right")
    has_details = any(_detail(trial) for trial in trials)
    if has_details:
        table.add_column("why", overflow="fold")
    for trial in trials[:MOST_ROWS]:
        row: list[str | Text] = [_value(trial, key) for key in keys]
        row.append(_status(trial))
        row += ["" if name not in trial.metrics else format_value(trial.metrics[name]) for name in metrics]
        row.append("" if trial.seconds is None else format_seconds(trial.seconds))
        row.append("" if trial.peak_bytes is None else format_bytes(trial.peak_bytes))
        if has_details:
            row.append(escape(_detail(trial)))
        table.add_row(*row)
    return table


def results_csv(trials: Iterable[TrialResult]) -> str:
    """Return the results as CSV: what was asked for, what was used instead, what came out, and how it ended."""
    listed = list(trials)
    keys, metrics = _keys(listed), _metrics(listed)
    changed = list(dict.fromkeys(key for trial in listed for key in trial.effective))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_CSV_COLUMNS, *keys, *(f"effective.{key}" for key in changed), *metrics])
    for trial in listed:
        row = [getattr(trial, column) for column in _CSV_COLUMNS]
        row += [trial.config.get(key) for key in keys]
        row += [trial.effective.get(key, trial.config.get(key)) for key in changed]
        writer.writerow([*row, *(trial.metrics.get(name) for name in metrics)])
    return text.getvalue()


def summary(statuses: Mapping[str, int] | Counter[str]) -> str:
    """Return how many trials are in which state.

    >>> summary({"done": 7, "oom": 2})
    '9 trials: 7 done, 2 oom'
    """
    total = sum(statuses.values())
    told = ", ".join(f"{number:,} {status}" for status, number in statuses.items())
    return f"{total:,} trial{'s' if total != 1 else ''}: {told}"


def _keys(trials: Sequence[TrialResult]) -> list[str]:
    return list(dict.fromkeys(key for trial in trials for key in (*trial.config, *trial.effective)))


def _metrics(trials: Sequence[TrialResult]) -> list[str]:
    return list(dict.fromkeys(name for trial in trials for name in trial.metrics))


def _value(trial: TrialResult, key: str) -> str:
    """Return the value of a key; where another was used than asked for, both."""
    asked = format_value(trial.config[key]) if key in trial.config else ""
    if key in trial.effective:
        return escape(f"{asked} → {format_value(trial.effective[key])}".strip())
    return escape(asked)


def _status(trial: TrialResult) -> Text:
    return Text(trial.status, _STYLES.get(trial.status, "bold red"))


def _detail(trial: TrialResult) -> str:
    return "" if trial.status == "done" or trial.detail is None else trial.detail


def _need(need: Need | None) -> Text:
    if need is None:
        return Text("?", "dim")
    return Text(format_bytes(need.num_bytes), "" if need.fits else "bold red")
