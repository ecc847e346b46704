"""What may happen to a driver: killed, interrupted, a full disk, a torn journal; nothing is lost or runs twice."""

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import psutil
import pytest
from tests.unit.sweeping.conftest import Told, journal_of, run, wait_until

import brim
from brim.errors import DeviceError, InputError
from brim.sweeping.journal import read_journal


class BrokenSink:
    def record(self, result):
        raise ConnectionError("no route to host")

    def close(self):
        pass


def test_a_sink_that_fails_costs_a_warning_and_no_result(write):
    results, told = run(write("succeed", {"value": [1, 2]}), sinks=[BrokenSink()])
    assert told.warnings == ["BrokenSink failed and gets no more results: no route to host"]
    assert [trial.status for trial in results] == ["done", "done"]


def start_driver(path, *arguments):
    command = [sys.executable, "-m", "brim", "sweep", str(path), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_sweeps_on_one_directory_are_refused(write, tmp_path):
    path = write("hang", {"value": [1]})
    first = start_driver(path)
    wait_until(lambda: list(tmp_path.glob("hangs-*[0-9]")))
    with pytest.raises(InputError, match=rf"is in use by another sweep \(process {first.pid} on"):
        run(path)
    assert next(iter(brim.SweepResults.read(path.with_suffix(".sweep")))).status == "running"
    first.kill()
    first.communicate()


def test_ctrl_c_ends_the_trials_and_the_next_run_goes_on(write, tmp_path):
    path = write("hang_once", {"value": [1, 2, 3]}, base={"hanging": 2})
    driver = start_driver(path, "--jobs", "1", "--json")
    wait_until(lambda: list(tmp_path.glob("started-2-*[0-9]")))
    driver.send_signal(signal.SIGINT)
    output, errors = driver.communicate(timeout=60)
    assert driver.returncode == 130
    assert "Interrupted" in errors
    assert [trial["status"] for trial in json.loads(output)["trials"]] == ["done", "interrupted", "planned"]
    results, told = run(path)
    assert [config["value"] for config, _ in told.started_trials] == [2, 3]
    assert [trial.status for trial in results] == ["done"] * 3


def test_when_the_driver_is_killed_its_trials_die_with_it(write, tmp_path):
    path = write("hang", {"value": [1]})
    driver = start_driver(path)
    (trace,) = wait_until(lambda: list(tmp_path.glob("hangs-*[0-9]")))
    noted = json.loads(trace.read_text())
    driver.kill()
    driver.communicate()
    for pid in (noted["pid"], noted["config"]["child"]):
        wait_until(lambda pid=pid: not psutil.pid_exists(pid), 10)


def test_a_trial_that_ended_when_its_driver_was_dead_is_not_run_again(write):
    path = write("succeed", {"value": [1, 2]})
    results, _ = run(path)
    journal = path.with_suffix(".sweep") / "journal.jsonl"
    events = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(line for line in events if json.loads(line)["event"] == "started"))
    again, told = run(path)
    assert told.started_trials == []
    assert [trial.metrics for trial in again] == [trial.metrics for trial in results]


@pytest.mark.slow
def test_a_driver_killed_at_20_random_points_loses_nothing_and_runs_nothing_twice(write, tmp_path):
    path = write("succeed", {"value": list(range(60))})
    journal = path.with_suffix(".sweep") / "journal.jsonl"
    chance = random.Random(5)
    num_killed = 0
    while num_killed < 20:
        driver = start_driver(path, "--jobs", "2")
        size = journal.stat().st_size if journal.exists() else 0
        grown = size + chance.randrange(1, 900)
        while driver.poll() is None and not (journal.exists() and journal.stat().st_size >= grown):
            time.sleep(0.001)
        time.sleep(chance.random() * 0.02)
        driver.kill()
        driver.communicate()
        num_killed += 1
    assert 0 < sum(event["event"] == "ended" for event in read_journal(journal.parent)) < 60
    results, _ = run(path)
    assert sorted(trial.config["value"] for trial in results) == list(range(60))
    assert [(trial.status, trial.metrics["score"]) for trial in results] == [("done", 2 * n) for n in range(60)]
    ended = Counter(event["trial"] for event in journal_of(path) if event["event"] == "ended")
    assert len(ended) == 60
    assert set(ended.values()) == {1}


def test_a_torn_last_line_is_cut_off(write):
    path = write("succeed", {"value": [1, 2]})
    run(path, max_experiments=1)
    journal = path.with_suffix(".sweep") / "journal.jsonl"
    with journal.open("a") as file:
        file.write('{"event":"ended","trial":"00')
    results, told = run(path)
    assert len(told.started_trials) == 1
    assert [trial.status for trial in results] == ["done", "done"]
    assert all(line.startswith("{") for line in journal.read_text().splitlines())


def test_a_full_disk_stops_the_sweep_and_making_room_lets_it_go_on(write, monkeypatch):
    path = write("succeed", {"value": [1, 2, 3]})
    code = (
        "import brim, resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (900, resource.RLIM_INFINITY))\n"  # the journal's third event
        "brim.sweep(sys.argv[1], jobs=1)\n"
    )
    full = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True)
    assert full.returncode == 1
    assert "DeviceError: The journal" in full.stderr
    assert "Make room and run the sweep again" in full.stderr
    results, _ = run(path)
    assert [trial.status for trial in results] == ["done"] * 3
    assert Counter(event["trial"] for event in journal_of(path) if event["event"] == "ended").most_common(1)[0][1] == 1


def test_a_trial_that_fails_because_the_disk_is_full_is_not_blamed(write, monkeypatch):
    import shutil

    path = write("fail", {"value": [1, 2]})
    usage = shutil.disk_usage(path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(DeviceError, match=r"The disk that holds .* is full. Make room"):
        run(path, jobs=1)
    monkeypatch.undo()
    _, told = run(path)
    assert [config["value"] for config, _ in told.started_trials] == [1, 2]


def test_the_journal_is_on_disk_before_a_trial_counts(write, monkeypatch):
    import os

    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_size))

    class Counts(Told):
        def trial_ended(self, result, following):
            seen.append((journal.stat().st_size, synced[-1]))

    seen = []
    path = write("succeed", {"value": [1, 2]})
    journal = path.with_suffix(".sweep") / "journal.jsonl"
    brim.sweep(path, observer=Counts(), jobs=1)
    assert len(seen) == 2
    assert all(written == on_disk for written, on_disk in seen)
