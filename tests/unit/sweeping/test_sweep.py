"""Whole sweeps: each trial once, whatever happens in between."""

import logging

import pytest
import yaml
from tests.conftest import WORKLOADS
from tests.unit.sweeping.conftest import journal_of, run

import brim
from brim.errors import InputError, SweepStoppedError
from brim.sweeping.policy import STOP_AFTER


def test_every_trial_runs_once_and_a_second_run_runs_nothing(write, tmp_path):
    path = write("succeed", {"value": [1, 2, 3]})
    results, told = run(path)
    assert [(trial.config["value"], trial.status, trial.metrics["score"]) for trial in results] == [
        (1, "done", 2),
        (2, "done", 4),
        (3, "done", 6),
    ]
    assert len(told.started_trials) == 3
    again, told = run(path)
    assert again.trials == results.trials
    assert told.started_trials == []
    assert told.outlook.num_ended == 3
    assert len(list(tmp_path.glob("ran-*"))) == 3


def test_a_limit_runs_the_first_and_the_rest_later(write):
    path = write("succeed", {"value": [1, 2, 3, 4]})
    first, _ = run(path, max_experiments=2)
    assert (len(first), [trial.config["value"] for trial in first]) == (2, [1, 2])
    _, told = run(path)
    assert [config["value"] for config, _ in told.started_trials] == [3, 4]


def test_an_edited_file_runs_only_what_is_new_and_says_what_is_gone(write):
    run(write("succeed", {"value": [1, 2, 3]}))
    path = write("succeed", {"value": [2, 3, 4, 5]})
    planned, told = run(path, dry_run=True)
    assert told.notes == ["the sweep was edited: 2 new, 2 kept, 1 gone (value=1)"]
    assert [trial.status for trial in planned] == ["done", "done", "planned", "planned"]
    results, told = run(path)
    assert told.notes == ["the sweep was edited: 2 new, 2 kept, 1 gone (value=1)"]
    assert [config["value"] for config, _ in told.started_trials] == [4, 5]
    assert [trial.config["value"] for trial in results] == [2, 3, 4, 5]


def test_an_edited_base_makes_every_trial_new(write):
    run(write("succeed", {"value": [1, 2]}))
    _, told = run(write("succeed", {"value": [1, 2]}, base={"batch": 5}))
    assert told.notes == ["the sweep was edited: 2 new, 0 kept, 2 gone (value=1; value=2)"]
    assert len(told.started_trials) == 2


def test_what_is_gone_is_told_once_whatever_runs_again(write):
    run(write("fail", {"value": [1, 2]}))
    run(write("fail", {"value": [2, 3]}))
    _, told = run(write("fail", {"value": [3, 4, 5]}), retry=["error"])
    assert told.notes == ["the sweep was edited: 2 new, 1 kept, 1 gone (value=2)"]


def test_a_changed_command_keeps_results_but_says_so(write):
    run(write("succeed", {"value": [1]}))
    _, told = run(write("return_number", {"value": [1, 2]}))
    assert "what runs has changed, from `trials.py:succeed`" in told.warnings[0]
    assert len(told.started_trials) == 1


def test_failures_are_recorded_and_run_again_when_asked(write):
    path = write("fail", {"value": [1, 2]})
    results, _ = run(path)
    assert [trial.status for trial in results] == ["error", "error"]
    _, told = run(path)
    assert told.started_trials == []
    _, told = run(path, retry=["oom"])
    assert told.started_trials == []
    results, told = run(path, retry=["oom", "error"])
    assert [attempt for _, attempt in told.started_trials] == [2, 2]
    assert [trial.attempt for trial in results] == [2, 2]
    first = next(iter(results)).id
    assert (path.with_suffix(".sweep") / "trials" / first / "log.1.txt").exists()


def test_an_oom_is_recorded_as_it_is_because_shrinking_changes_the_pair(write):
    path = write("run_out_above_batch", {"hp.batch_size": [4, 64]}, base={"room": 8, "hp": {"batch_size": 1}})
    results, _ = run(path)
    assert [(trial.status, dict(trial.effective)) for trial in results] == [("done", {}), ("oom", {})]


def test_an_oom_is_reduced_when_asked_and_both_values_are_kept(write):
    base = {"room": 8, "hp": {"batch_size": 1, "accumulation": 2}}
    on_oom = {"reduce": "hp.batch_size", "keep_effective": "hp.accumulation"}
    path = write("run_out_above_batch", {"hp.batch_size": [8, 48]}, base=base, on_oom=on_oom)
    results, told = run(path)
    whole, reduced = results
    assert (whole.status, whole.metrics["batch"], dict(whole.effective)) == ("done", 8, {})
    assert (reduced.status, reduced.metrics["batch"]) == ("done", 6)
    assert (reduced.config["hp.batch_size"], dict(reduced.effective)) == (
        48,
        {"hp.batch_size": 6, "hp.accumulation": 16},
    )
    assert [attempt for config, attempt in told.started_trials if config["hp.batch_size"] == 48] == [1, 2, 3, 4]


def test_larger_batches_of_a_model_that_ran_out_are_skipped_when_asked(write):
    base = {"room": 8, "hp": {"batch_size": 1}, "model": {"type": "a"}}
    product = {"model.type": ["a", "b"], "hp.batch_size": [4, 16, 64]}
    path = write("run_out_above_batch", product, base=base, on_oom={"skip_larger": "hp.batch_size"})
    results, told = run(path, jobs=1)
    assert [trial.status for trial in results] == ["done", "oom", "predicted_oom"] * 2
    assert results.trials[2].detail == "hp.batch_size 16 already ran out of memory"
    assert len(told.started_trials) == 4
    # Without the wish they run.
    results, told = run(write("run_out_above_batch", product, base=base), jobs=1)
    assert [config["hp.batch_size"] for config, _ in told.started_trials] == [64, 64]


def test_a_batch_that_fits_now_no_longer_stands_before_larger_ones(write):
    settings = {"on_oom": {"skip_larger": "hp.batch_size"}}
    product = {"hp.batch_size": [4, 16, 64]}
    base = {"room": 8, "hp": {"batch_size": 1}, "model": {"type": "a"}}
    run(write("run_out_above_batch", product, base=base, **settings), jobs=1)
    path = write("succeed", product, base=base, **settings)  # the code was mended
    results, _ = run(path, jobs=1, retry=["oom"])
    assert [trial.status for trial in results] == ["done"] * 3


def test_a_function_that_is_not_there_fails_once_with_the_nearest(write):
    path = write("suceed", {"value": list(range(50))})
    with pytest.raises(SweepStoppedError, match=r"No trial can be started: .* 'suceed'\. Did you mean succeed\?"):
        run(path, jobs=1)
    assert sum(event["event"] == "ended" for event in journal_of(path)) == 1


def test_a_functions_log_begins_with_its_own_traceback(write):
    path = write("fail", {"value": [1]})
    results, _ = run(path)
    log = (path.with_suffix(".sweep") / "trials" / next(iter(results)).id / "log.txt").read_text()
    assert log.startswith("Traceback")
    assert "BecomeTrial" not in log


def test_a_file_is_no_place_for_results(write):
    path = write("succeed", {"value": [1]})
    with pytest.raises(InputError, match=r"grid\.yaml is a file\. Results need a folder"):
        run(path, out=path)


def test_after_equal_fast_failures_the_sweep_stops_and_says_why(write):
    path = write("fail", {"value": [7], "seed": list(range(50))}, base={"seed": 0})
    with pytest.raises(
        SweepStoppedError, match=f"{STOP_AFTER} trials in a row failed .* cannot learn from 7"
    ) as stopped:
        run(path, jobs=1)
    assert "stop_after: 0" in str(stopped.value)
    assert sum(event["event"] == "ended" for event in journal_of(path)) == STOP_AFTER


def test_failures_that_differ_do_not_stop_the_sweep(write):
    results, _ = run(write("fail", {"value": list(range(STOP_AFTER + 2))}))
    assert {trial.status for trial in results} == {"error"}


def test_a_command_that_does_not_exist_is_refused_before_anything_is_written(write, tmp_path):
    path = write("succeed", {"value": [1]})
    document = yaml.safe_load(path.read_text())
    del document["function"]
    path.write_text(yaml.safe_dump({**document, "command": "no-such-program {config}"}))
    with pytest.raises(InputError, match="There is no program 'no-such-program'"):
        run(path)
    assert not path.with_suffix(".sweep").exists()


def test_a_command_that_cannot_start_stops_the_sweep_at_the_first_trial(write, tmp_path):
    path = write("succeed", {"value": list(range(50))})
    (tmp_path / "broken").write_text("#!/no/such/interpreter\n")
    (tmp_path / "broken").chmod(0o755)
    document = yaml.safe_load(path.read_text())
    del document["function"]
    path.write_text(yaml.safe_dump({**document, "command": f"{tmp_path}/broken {{config}}"}))
    with pytest.raises(SweepStoppedError, match="No trial can be started"):
        run(path, jobs=1)
    assert sum(event["event"] == "started" for event in journal_of(path)) == 1


def test_the_older_form_is_guessed_once_and_never_again(write, tmp_path):
    pairs = {"model.type": ["a", "b"], "hp.batch_size": [8, 4]}
    base = {"model": {"type": "x"}, "hp": {"batch_size": 1}}
    path = write("succeed", {}, base={**base, "value": 1})
    document = yaml.safe_load(path.read_text())
    del document["sweep"]
    path.write_text(yaml.safe_dump({**document, "grid_search": {"grid": pairs}}))
    with pytest.raises(InputError, match="which --strict forbids; paired: 2 trials; product would be 4"):
        run(path, strict=True)
    _, told = run(path, max_experiments=1)
    assert told.warnings == ["paired: 2 trials; product would be 4; say `zip` or `product` to silence this"]
    results, told = run(path, strict=True)
    assert told.warnings == []
    assert [trial.status for trial in results] == ["done", "done"]


def test_a_case_without_its_key_is_refused_before_anything_runs(write):
    auto = {**FINDING, "case": {"rows": "data.rows"}}
    path = write("succeed", {"hp.batch_size": {"auto": auto}}, base={"hp": {"batch_size": 1}})
    with pytest.raises(InputError, match=r"The case rows should be the configuration's data\.rows, but there is no"):
        run(path)
    assert not path.with_suffix(".sweep").exists()


def test_the_directory_of_another_sweep_is_refused(write, tmp_path):
    run(write("succeed", {"value": [1]}), out=tmp_path / "out")
    with pytest.raises(InputError, match=r"holds the results of another sweep, \.\./grid.yaml"):
        run(write("succeed", {"value": [1]}, file="other.yaml"), out=tmp_path / "out")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "me.jpg").touch()
    with pytest.raises(InputError, match="is not empty and holds no sweep"):
        run(tmp_path / "grid.yaml", out=tmp_path / "photos")


def test_a_mapping_needs_a_directory_and_runs_like_a_file(tmp_path):
    document = {"function": f"{WORKLOADS}/trials.py:return_number", "sweep": {"product": {"value": [1, 2]}}}
    with pytest.raises(InputError, match="Pass out='folder'"):
        brim.sweep(document)
    results = brim.sweep(document, out=tmp_path / "out")
    assert [trial.metrics["value"] for trial in results] == [0.5, 1.0]


def test_the_log_names_every_trial(write, caplog):
    with caplog.at_level(logging.INFO, logger="brim"):
        brim.sweep(write("succeed", {"value": [1, 2]}))
    assert any("done score=4" in message for message in caplog.messages)


FINDING = {
    "workload": "simple.py:Evaluate",
    "cap": 4,
    "device": "cpu",
    "memory": "640MiB",
    "case": {"rows": "rows"},
    "strategy": "doubling",
}


@pytest.mark.slow
def test_auto_finds_each_batch_once_for_every_case_and_runs_with_it(write, tmp_path):
    product = {"rows": [16, 32], "seed": [0, 1], "hp.batch_size": {"auto": FINDING}}
    path = write("succeed", product, base={"rows": 1, "seed": 0, "hp": {"batch_size": 1}, "value": 1})
    results, _ = run(path, jobs=2)
    assert [trial.status for trial in results] == ["done"] * 4, [trial.detail for trial in results]
    assert [trial.effective for trial in results] == [{"hp.batch_size": 4}] * 4
    findings = list(path.with_suffix(".sweep").glob("trials/*/finding.json"))
    assert len(findings) == 2
    config = yaml.safe_load((path.with_suffix(".sweep") / "trials" / results.trials[3].id / "config.yaml").read_text())
    assert config["hp"]["batch_size"] == 4
    assert results.trials[0].config["hp.batch_size"] == {"auto": FINDING}


@pytest.mark.slow
def test_auto_where_nothing_fits_is_an_oom_and_a_workload_that_is_not_there_stops_the_sweep(write):
    auto = {**FINDING, "workload": "simple.py:Huge", "memory": "500MiB"}
    product = {"rows": [16], "seed": [0, 1], "hp.batch_size": {"auto": auto}}
    base = {"rows": 1, "seed": 0, "hp": {"batch_size": 1}, "value": 1}
    results, told = run(write("succeed", product, base=base))
    assert [trial.status for trial in results] == ["oom", "oom"]
    assert "nothing fits" in results.trials[0].detail
    assert len(told.started_trials) == 1
    auto = {**FINDING, "workload": "simple.py:Missing"}
    with pytest.raises(SweepStoppedError, match=r"finding the batch size: .*simple\.py has no 'Missing'"):
        run(write("succeed", {"hp.batch_size": {"auto": auto}}, base=base, file="other.yaml"))
