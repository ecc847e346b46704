import csv
import io
import json
from dataclasses import replace

import pytest
import yaml
from tests.conftest import WORKLOADS

import brim
from brim.errors import InputError, RecordError
from brim.reporting.sweep import results_csv
from brim.sweeping.results import TrialResult, overview, sort_results

BASE = {"room": 8, "hp": {"batch_size": 1}, "value": 3, "seed": 0}


@pytest.fixture
def results(tmp_path):
    document = {
        "function": "trials.py:run_out_above_batch",
        "workdir": str(WORKLOADS),
        "base": BASE,
        "metric": {"name": "batch", "goal": "min"},
        "sweep": {"product": {"hp.batch_size": [4, 16, 2], "seed": [0]}},
    }
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return brim.sweep(tmp_path / "grid.yaml")


def batches(trials):
    return [trial.config["hp.batch_size"] for trial in trials]


def test_results_come_in_the_order_of_the_plan_and_can_be_read_again(results):
    assert batches(results) == [4, 16, 2]
    again = brim.SweepResults.read(results.directory)
    assert again.trials == results.trials
    assert again.metric == results.metric


def test_the_document_is_the_documented_one(results):
    document = json.loads(json.dumps(results.to_dict()))
    assert (document["schema"], document["num_trials"]) == ("brim.sweep/1", 3)
    assert document["directory"] == str(results.directory)
    first = document["trials"][0]
    assert {"id", "config", "status", "metrics", "seconds"} <= set(first)
    assert (first["config"], first["status"], first["metrics"]) == (
        {"hp.batch_size": 4, "seed": 0},
        "done",
        {"batch": 4},
    )
    assert first["seconds"] > 0


def test_they_are_sorted_best_first_and_what_has_no_metric_comes_last(results):
    assert batches(sort_results(results, "metric")) == [2, 4, 16]
    assert batches(sort_results(results, "batch", reverse=True)) == [4, 2, 16]
    assert batches(sort_results(results, "hp.batch_size")) == [2, 4, 16]
    assert batches(sort_results(results, "status")) == [4, 2, 16]
    assert results.best.config["hp.batch_size"] == 2


def test_sorting_by_what_no_trial_has_is_refused_with_the_nearest(results):
    with pytest.raises(InputError, match=r"No trial has 'batches' to sort by\. Did you mean batch\?"):
        sort_results(results, "batches")


def test_csv_has_what_was_used_and_what_came_out(results):
    rows = list(csv.DictReader(io.StringIO(results_csv(results))))
    assert [row["status"] for row in rows] == ["done", "oom", "done"]
    assert [row["batch"] for row in rows] == ["4", "", "2"]
    assert rows[1]["detail"] == "MemoryError: 16 samples"


def test_csv_keeps_what_was_asked_for_beside_what_was_used():
    asked = TrialResult(id="a", config={"batch": 128}, status="done", effective={"batch": 16, "accumulation": 8})
    plain = TrialResult(id="b", config={"batch": 16}, status="done")
    rows = list(csv.DictReader(io.StringIO(results_csv([asked, plain]))))
    assert [(row["batch"], row["effective.batch"], row["effective.accumulation"]) for row in rows] == [
        ("128", "16", "8"),
        ("16", "16", ""),
    ]


def test_only_a_trial_that_is_done_can_be_the_best(tmp_path):
    document = {
        "function": "trials.py:report_and_fail",
        "workdir": str(WORKLOADS),
        "base": {"value": 0, "bad": 9},
        "metric": "score",
        "sweep": {"product": {"value": [1, 9, 3]}},
    }
    results = brim.sweep(document, out=tmp_path / "out")
    assert [trial.status for trial in results] == ["done", "error", "done"]
    assert results.trials[1].metrics == {"score": 9}
    assert results.best.config["value"] == 3
    assert [trial.config["value"] for trial in sort_results(results, "metric")] == [3, 1, 9]


def test_what_was_begun_is_shown_without_reading_a_plan_of_billions(tmp_path):
    many = list(range(2000))
    document = {
        "function": "trials.py:succeed",
        "workdir": str(WORKLOADS),
        "base": {"dir": str(tmp_path), "value": 0, "a": 0, "b": 0},
        "metric": "score",
        "sweep": {"product": {"value": many, "a": many, "b": many}},
    }
    brim.sweep(document, out=tmp_path / "out", max_experiments=3)
    plan = brim.SweepResults.read(tmp_path / "out").plan
    seen = overview(brim.SweepResults(replace(plan, limit=None), tmp_path / "out"), most_rows=200)
    assert [trial.config["b"] for trial in seen.rows] == [0, 1, 2]
    assert seen.statuses == {"done": 3, "planned": 2000**3 - 3}
    assert seen.best == seen.rows[0]


def test_a_journal_that_was_mangled_is_refused_with_its_line(results):
    journal = results.directory / "journal.jsonl"
    lines = journal.read_text().splitlines()
    lines[1] = lines[1][:10]
    journal.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=r"Line 2 of .*journal\.jsonl is not JSON"):
        list(brim.SweepResults.read(results.directory))


def test_an_event_of_another_shape_is_refused_with_its_line_and_field(results):
    journal = results.directory / "journal.jsonl"
    written = journal.read_text()
    for field, value, message in (
        ("trial", 7, "trial is 7, expected the id of a trial."),
        ("outcome", {"kind": "done"}, "outcome.metrics is missing, expected an object."),
        ("outcome", None, "outcome is null, expected an object."),
    ):
        events = [json.loads(line) for line in written.splitlines()]
        number = next(number for number, event in enumerate(events) if event["event"] == "ended")
        events[number][field] = value
        journal.write_text("".join(f"{json.dumps(event)}\n" for event in events))
        with pytest.raises(RecordError, match=rf"^Line {number + 1} of .*journal\.jsonl: {message}"):
            list(brim.SweepResults.read(results.directory))


def test_a_plan_of_another_shape_is_refused_with_its_field(results):
    path = results.directory / "plan.json"
    document = json.loads(path.read_text())
    document["dimensions"][0]["keys"] = "seed"
    path.write_text(json.dumps(document))
    with pytest.raises(RecordError, match=r'plan\.json: dimensions\[0\]\.keys is "seed", expected a list\.'):
        brim.SweepResults.read(results.directory)


def test_a_folder_without_a_sweep_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no sweep"):
        brim.SweepResults.read(tmp_path)
