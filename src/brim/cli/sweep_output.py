"""How `brim sweep` speaks: the plan before it runs, its trials while they run, its results."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from rich.text import Text

from brim.cli.output import live_or_lines, print_json, results_console
from brim.reporting.sweep import MOST_ROWS, plan_table, results_csv, results_table, summary
from brim.reporting.sweep_live import LiveSweepObserver
from brim.sweeping.memory_check import MemoryCheck, warnings_of
from brim.sweeping.observer import LogSweepObserver, SweepObserver, describe_config, format_value
from brim.sweeping.results import PLANNED, SweepResults, TrialResult, overview


def sweep_observer() -> AbstractContextManager[SweepObserver]:
    """Return a live view of a sweep on a terminal, log lines elsewhere, both on standard error."""
    return live_or_lines(LiveSweepObserver, LogSweepObserver)


def print_plan(results: SweepResults, *, as_json: bool) -> None:
    """Print the count's arithmetic, the trials, and what will not fit."""
    check = MemoryCheck(results.plan)
    planned = [results.plan.trial(trial.config) for trial in results.trials]
    needs = {trial.id: need for trial in planned if (need := check.need(trial)) is not None}
    lines = warnings_of([(trial, needs[trial.id]) for trial in planned if trial.id in needs], results.plan.spec)
    if as_json:
        print_json({**results.to_dict(), "count": str(results.plan.grid.count), "warnings": lines})
        return
    console = results_console()
    console.print(Text(str(results.plan.grid.count), "bold"), soft_wrap=True)
    console.print(plan_table(results.trials, needs))
    hidden = results.num_trials - min(len(results.trials), MOST_ROWS)
    if hidden:
        console.print(Text(f"… and {hidden:,} more trials"))
    if results.num_trials < len(results.plan.grid):
        console.print(Text(f"Only the first {results.num_trials:,} of {len(results.plan.grid):,} trials will run."))
    if needs:
        console.print(Text(f"Memory is held against {check.device}."))
    for line in [*lines, *check.problems]:
        console.print(Text.assemble(("warning: ", "yellow"), line), soft_wrap=True)
    console.print(Text(f"Results go to {results.directory}."), soft_wrap=True)


def print_results(results: SweepResults, order: Sequence[TrialResult] | None = None) -> Mapping[str, int]:
    """Print what came out of a sweep, in the plan's order or another; return how many trials are in which state."""
    seen = overview(results, most_rows=MOST_ROWS)
    rows = seen.rows if order is None else order[:MOST_ROWS]
    console = results_console()
    console.print(results_table(rows))
    num_begun = sum(seen.statuses.values()) - seen.statuses.get(PLANNED, 0)
    if num_begun > len(rows):
        console.print(Text(f"… and {num_begun - len(rows):,} more; `brim sweep results … --csv` has all"))
    console.print(Text(summary(seen.statuses)), soft_wrap=True)
    best = seen.best
    if best is not None and results.metric is not None:
        name = results.metric.name
        told = describe_config(best.config, best.effective)
        console.print(Text(f"Best {name}: {format_value(best.metrics[name])} with {told}"), soft_wrap=True)
    console.print(Text(f"Logs and configurations: {results.directory}/trials"), soft_wrap=True)
    return seen.statuses


def print_csv(trials: Sequence[TrialResult]) -> None:
    """Print the results as CSV on standard output."""
    sys.stdout.write(results_csv(trials))
