import io

import pytest
from rich.console import Console

from brim.reporting.sweep import plan_table, results_table
from brim.reporting.sweep_live import LiveSweepObserver
from brim.sweeping.observer import Outlook
from brim.sweeping.plan import Trial
from brim.sweeping.results import TrialResult
from brim.sweeping.spec import Metric


def shown(renderable, width=140):
    console = Console(width=width, file=io.StringIO())
    console.print(renderable)
    return console.file.getvalue()


def result(number, status="done", **data):
    metrics = {"accuracy": number / 10} if status == "done" else {}
    return TrialResult(id=f"{number:016x}", config={"lr": number}, status=status, metrics=metrics, seconds=4.0, **data)


def test_requested_and_effective_values_are_both_shown():
    trials = [
        TrialResult(id="a", config={"batch": 64}, status="done", effective={"batch": 32, "accumulation": 2}),
        TrialResult(id="b", config={"batch": {"auto": {"cap": 9}}}, status="done", effective={"batch": 7}),
    ]
    text = shown(results_table(trials))
    assert "64 → 32" in text
    assert "auto → 7" in text
    assert "accumulation" in text


def test_a_failure_says_why():
    text = shown(results_table([result(1), result(2, "error", detail="ValueError: [bold]x[/bold]")]))
    assert "ValueError: [bold]x[/bold]" in text


def test_a_plan_shows_what_ran_before_only_where_something_did():
    assert "status" not in shown(plan_table([result(1, "planned")], {}))
    assert "status" in shown(plan_table([result(1, "planned"), result(2)], {}))


def test_the_live_table_counts_estimates_and_knows_the_best():
    console = Console(width=160, file=io.StringIO(), force_terminal=True)
    view = LiveSweepObserver(console)
    assert view.eta_seconds is None
    view.started(Outlook(directory="d", num_trials=10, num_ended=2, metric=Metric(name="accuracy")))
    for number in (1, 2):
        view.trial_started(Trial(id=f"{number:016x}", config={"lr": number}, resolved={}), 1)
    view.trial_ended(result(2), None)
    view.trial_ended(result(1), None)
    view.trial_started(Trial(id=f"{3:016x}", config={"lr": 3}, resolved={}), 1)
    view.trial_ended(result(3, "oom"), "runs again with lr=1")
    view.trial_ended(result(3, "error", detail="boom"), None)
    # Five of ten are left, four seconds each, two at once.
    assert view.eta_seconds == pytest.approx(10.0)
    figures = view.figures().plain
    assert figures == "5/10 · 0 running · 2 done · 1 failed · ETA 10 s · best accuracy 0.2"


def test_less_is_better_where_the_sweep_says_so():
    view = LiveSweepObserver(Console(width=160, file=io.StringIO()))
    metric = Metric(name="accuracy", goal="min")
    view.started(Outlook(directory="d", num_trials=2, num_ended=0, metric=metric))
    view.trial_ended(result(2), None)
    view.trial_ended(result(1), None)
    assert "best accuracy 0.1" in view.figures().plain
