"""A sweep as a section: how its trials ended, and their metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from brim.reporting.page.axes import count, memory, plain
from brim.reporting.page.charts import bars, both_widths
from brim.reporting.page.section import Chart, Section, Table
from brim.sweeping.results import is_number, smaller_is_better
from brim.units import format_seconds

# A page with more rows than this is slow to open; `brim sweep results --csv` has them all.
_MOST_ROWS = 500
_MOST_BARS = 25
_MOST_METRICS = 3


def sweep_section(data: Mapping[str, Any]) -> Section:
    """Return the section of a document `brim.sweep/1`."""
    trials = data["trials"]
    statuses = Counter(trial["status"] for trial in trials)
    notes = []
    if len(trials) > _MOST_ROWS:
        notes.append(
            f"The first {_MOST_ROWS:,} of {len(trials):,} trials are in the table; "
            f"brim sweep results {data['directory']} --csv has all."
        )
    return Section(
        kind="sweep",
        title=str(data["directory"]),
        subtitle=f"a sweep of {data['num_trials']:,} trials",
        facts=[
            ("trials", count(data["num_trials"])),
            *((status, count(num)) for status, num in statuses.most_common()),
        ],
        notes=notes,
        charts=_metric_charts(trials),
        tables=[_trial_table(trials[:_MOST_ROWS])],
    )


def _metric_charts(trials: Sequence[Mapping[str, Any]]) -> list[Chart]:
    names = list(dict.fromkeys(name for trial in trials for name in trial["metrics"]))
    charts: list[Chart] = []
    for name in names:
        having = [trial for trial in trials if is_number(trial["metrics"].get(name))]
        if len(having) > 1 and len(charts) < _MOST_METRICS:
            charts.append(_metric_chart(name, having))
    return charts


def _metric_chart(name: str, trials: Sequence[Mapping[str, Any]]) -> Chart:
    ordered = sorted(trials, key=lambda trial: trial["metrics"][name], reverse=not smaller_is_better(name, None))
    varied = _varied(trials)
    rows = [
        {
            # The number keeps trials with equal settings apart.
            "label": f"{number}. {_settings(trial, varied)}",
            "x": trial["metrics"][name],
            "text": plain(trial["metrics"][name]),
            "tip": f"{_settings(trial, varied)}: {name} {plain(trial['metrics'][name])}",
        }
        for number, trial in enumerate(ordered[:_MOST_BARS], 1)
    ]
    best = ordered[0]
    return Chart(
        title=f"{name}, best first",
        summary=f"The best of {len(ordered):,} is {_settings(best, varied)}: {plain(best['metrics'][name])}.",
        **both_widths(bars, rows, x_title=name),
        table=Table(
            caption=f"{name} by trial",
            columns=("trial", name),
            numeric=frozenset({name}),
            rows=[(row["label"], row["text"]) for row in rows],
        ),
    )


def _trial_table(trials: Sequence[Mapping[str, Any]]) -> Table:
    keys = list(dict.fromkeys(key for trial in trials for key in trial["config"]))
    metrics = list(dict.fromkeys(name for trial in trials for name in trial["metrics"]))
    return Table(
        caption="All trials",
        columns=("trial", *keys, "status", *metrics, "time", "peak", "why"),
        numeric=frozenset({*metrics, "time", "peak"}),
        rows=[
            (
                trial["id"][:8],
                *(_used(trial, key) for key in keys),
                trial["status"],
                *(plain(trial["metrics"].get(name)) for name in metrics),
                "–" if trial["seconds"] is None else format_seconds(trial["seconds"]),
                memory(trial.get("peak_bytes")),
                trial.get("detail") or "",
            )
            for trial in trials
        ],
    )


def _used(trial: Mapping[str, Any], key: str) -> str:
    """Write the value that was asked for, and the one that was used instead."""
    asked, used = trial["config"].get(key), trial.get("effective", {}).get(key)
    return plain(asked) if used is None or used == asked else f"{plain(asked)} → {plain(used)}"


def _varied(trials: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for trial in trials for key in trial["config"])
    return [key for key in keys if len({str(trial["config"].get(key)) for trial in trials}) > 1]


def _settings(trial: Mapping[str, Any], keys: Sequence[str]) -> str:
    return ", ".join(f"{key.rpartition('.')[2]}={trial['config'].get(key)}" for key in keys) or str(trial["id"])[:8]
