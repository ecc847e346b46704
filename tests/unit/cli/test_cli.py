"""The command line as people and scripts use it: what is printed where, and the exit code."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.conftest import WORKLOADS

from brim.searching.fastest import FIRST_ROUNDS

SIMPLE = f"{WORKLOADS}/simple.py"
FAULTS = f"{WORKLOADS}/faults.py"
SMALL = ("--device", "cpu", "--memory", "640MiB", "--no-cache")


def test_json_is_one_document_on_standard_output_and_the_rest_goes_to_standard_error(brim_cli):
    run = brim_cli("find", f"{SIMPLE}:Evaluate", *SMALL, "--cap", "8", "--case", "rows=64,128", "--json")
    assert run.returncode == 0
    document = json.loads(run.stdout)
    assert document["schema"] == "brim.findings/1"
    assert document["workload"] == f"{SIMPLE}:Evaluate"
    assert (document["kind"], document["ranks"], document["strategy"]) == ("eval", 1, "guided")
    assert document["device"] == {"name": "cpu", "memory_bytes": 640 * 2**20, "fill": 0.9}
    assert [finding["case"] for finding in document["findings"]] == [{"rows": 64}, {"rows": 128}]
    finding = document["findings"][0]
    assert (finding["status"], finding["microbatch"], finding["stopped_by"]) == ("found", 8, "cap")
    assert finding["confirmed"] is True
    assert set(finding["predicted"]) == {"largest", "peak_bytes"}
    probe = finding["probes"][-1]
    assert probe["verdict"] == "fits"
    assert probe["samples"] == 24
    assert probe["peak_bytes"] == finding["peak_bytes"] > 0
    assert re.search(r"✓ microbatch 8 fits \(\d+ MiB of 576 MiB\), confirming 8", run.stderr)


def test_the_table_names_every_case(brim_cli):
    run = brim_cli(
        "find", f"{SIMPLE}:Evaluate", *SMALL, "--cap", "4", "--case", "rows=32,64", "--start-from", "rows=64"
    )
    assert run.returncode == 0
    assert "rows=64" in run.stdout
    assert "rows=32" not in run.stdout
    assert "microbatch" in run.stdout


def test_a_value_to_start_from_is_named_once(brim_cli):
    starts = ("--start-from", "rows=64", "--start-from", "rows=32")
    run = brim_cli("find", f"{SIMPLE}:Evaluate", *SMALL, "--case", "rows=32,64", *starts)
    assert run.returncode == 2
    assert "--start-from is given 2 times. Name one value" in run.stderr


def test_an_answer_is_printed_where_its_bars_cannot_be(brim_cli):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    run = brim_cli("find", f"{SIMPLE}:Evaluate", *SMALL, "--cap", "4", "--start", "4", env=environment)
    assert run.returncode == 0
    assert re.search(r"default +4 ", run.stdout)


def test_estimate_walks_its_known_way(brim_cli):
    run = brim_cli(
        "find", f"{SIMPLE}:Evaluate", *SMALL, "--strategy", "estimate", "--cap", "28", "--case", "rows=4", "--json"
    )
    (finding,) = json.loads(run.stdout)["findings"]
    assert [probe["microbatch"] for probe in finding["probes"]] == [22, 28, 28]


def test_a_scale_table_is_read_from_yaml(brim_cli, tmp_path: Path):
    (tmp_path / "table.yaml").write_text("key: rows\nscales: {8: 1.0, 16: 0.5}\nabove: 0.25\n")
    arguments = ("--strategy", "estimate", "--cap", "8", "--tries", "1", "--case", "rows=12")
    run = brim_cli("find", f"{SIMPLE}:Evaluate", *SMALL, *arguments, "--scale-table", "table.yaml", "--json")
    (finding,) = json.loads(run.stdout)["findings"]
    assert finding["probes"][0]["microbatch"] == 4
    assert finding["stopped_by"] == "tries"


def test_nothing_fits_is_exit_code_3_with_what_it_would_take(brim_cli):
    run = brim_cli("find", f"{SIMPLE}:Huge", *SMALL)
    assert run.returncode == 3
    assert re.search(r"microbatch 1 needs about .* GiB \(traced\), the limit is 576 MiB", run.stdout)
    document = json.loads(brim_cli("find", f"{SIMPLE}:Huge", *SMALL, "--json").stdout)
    assert document["findings"][0]["microbatch"] is None
    assert document["findings"][0]["status"] == "nothing_fits"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py:Train"], "There is no file nowhere.py"),
        ([SIMPLE], "Did you mean"),
        ([f"{SIMPLE}:Missing"], "has no 'Missing'. Workloads defined there: Evaluate"),
        ([f"{SIMPLE}:NotAWorkload"], "is not a brim.Workload"),
        ([f"{SIMPLE}:Train", "--cap", "0"], "cap is 0. Use a whole number of at least 1"),
        ([f"{SIMPLE}:Train", "--cap", "many"], "Invalid value for '--cap'"),
        ([f"{SIMPLE}:Train", "--memory", "12parsecs"], "'12parsecs' is not a memory size. Use for example 8GiB"),
        ([f"{SIMPLE}:Train", "--fill", "1.7"], "fill is 1.7. Use a share of the memory above 0 and at most 1"),
        ([f"{SIMPLE}:Train", "--case", "rows"], "is not KEY=VALUES"),
        ([f"{SIMPLE}:Train", "--case", "rows="], "has a key without a value"),
        ([f"{SIMPLE}:Train", "--case", "rows=3..1"], "is empty"),
        ([f"{SIMPLE}:Train", "--strategy", "magic"], "Use one of: guided, estimate, doubling"),
        ([f"{SIMPLE}:Train", "--strategy", "estimate"], "Pass cap=64 (--cap 64)"),
        ([f"{SIMPLE}:Train", "--refine"], "refine goes with the strategy `doubling`"),
        ([f"{SIMPLE}:Train", "--device", "tpu"], "Use auto, cpu or cuda:N"),
        ([f"{SIMPLE}:Train", "--scale-table", "x.yaml"], "--scale-table goes with --strategy estimate"),
        ([], "Missing argument"),
        ([f"{SIMPLE}:Train", "--nonsense"], "No such option"),
    ],
)
def test_bad_input_is_exit_code_2_and_one_clear_message(brim_cli, arguments, message):
    run = brim_cli("find", *arguments)
    assert run.returncode == 2, run.stderr
    assert message in run.stderr.replace("\n", " ")
    assert "Traceback" not in run.stderr
    assert run.stdout == ""


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("BuildRaises", ["KeyError: 'no such checkpoint'", 'raise KeyError("no such checkpoint")']),
        ("BatchRaises", ["ValueError: the data is gone", "in batch"]),
        ("StepRaises", ["about to fail", "ZeroDivisionError", "step failed at microbatch"]),
        ("DoesNothing", ["ran without a single forward or backward pass", "loss.backward()"]),
        ("WrongBatch", ["returned tensors of shape (7, 128, 4096)"]),
    ],
)
def test_an_error_of_the_workload_is_exit_code_1_with_its_own_traceback(brim_cli, name, messages):
    run = brim_cli("find", f"{FAULTS}:{name}", *SMALL, "--cap", "16")
    assert run.returncode == 1
    for message in messages:
        assert message in run.stderr
    assert "brim/probing" not in run.stderr


@pytest.mark.parametrize("name", ["Sigkilled", "Segfaults", pytest.param("Hangs", marks=pytest.mark.long)])
def test_an_unclear_death_is_exit_code_1_after_three_tries(brim_cli, name):
    run = brim_cli("find", f"{FAULTS}:{name}", *SMALL, "--cap", "1", "--timeout", "2s")
    assert run.returncode == 1
    assert run.stderr.count("? microbatch 1") == 3
    assert "This is not read as out of memory" in run.stderr


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("class Broken(\n", "SyntaxError"),
        ("import a_package_that_is_not_there\n", "No module named 'a_package_that_is_not_there'"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_exit_code_1(brim_cli, tmp_path: Path, source, message):
    (tmp_path / "broken.py").write_text(source)
    run = brim_cli("find", "broken.py:Broken", *SMALL)
    assert run.returncode == 1
    assert message in run.stderr
    assert "broken.py" in run.stderr


def test_what_was_found_before_an_error_is_printed(brim_cli):
    run = brim_cli("find", f"{FAULTS}:FailsForLongRows", *SMALL, "--cap", "2", "--case", "rows=64,256", "--json")
    assert run.returncode == 1
    assert [finding["microbatch"] for finding in json.loads(run.stdout)["findings"]] == [2]


def test_debug_shows_brims_own_traceback(brim_cli):
    run = brim_cli("find", "nowhere.py:Train", "--debug")
    assert run.returncode != 0
    assert "WorkloadNotFoundError" in run.stderr
    assert "Traceback" in run.stderr


def test_a_cache_directory_that_cannot_be_written_costs_a_warning(brim_cli, tmp_path: Path):
    (tmp_path / "file").write_text("")
    environment = {**os.environ, "BRIM_CACHE_DIR": str(tmp_path / "file" / "cache")}
    run = brim_cli("find", f"{SIMPLE}:Evaluate", *SMALL[:-1], "--cap", "2", env=environment)
    assert run.returncode == 0
    assert "warning: The history" in run.stderr
    assert "going on without it" in run.stderr


def test_history_lists_what_was_found(brim_cli):
    assert "Nothing was found yet" in brim_cli("history").stdout
    brim_cli("find", f"{SIMPLE}:Evaluate", *SMALL[:-1], "--cap", "2", "--case", "rows=16")
    listed = brim_cli("history").stdout
    assert "rows=16" in listed
    assert "576 MiB" in listed
    document = json.loads(brim_cli("history", "--json").stdout)
    assert document["entries"][0]["finding"]["microbatch"] == 2


def test_a_broken_history_is_told_with_what_to_do(brim_cli, tmp_path: Path):
    (tmp_path / "findings.sqlite").write_text("this is no database" * 100)
    run = brim_cli("history", env={**os.environ, "BRIM_CACHE_DIR": str(tmp_path)})
    assert run.returncode == 1
    assert "cannot be used (file is not a database). Move it away" in run.stderr


def descendants(pid):
    return psutil.Process(pid).children(recursive=True)


def wait_until(condition, seconds=60):
    """Poll, because there is nothing to wait on in another process's children."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_is_exit_code_130_prints_what_was_found_and_leaves_nothing(tmp_path: Path, number):
    command = [sys.executable, "-m", "brim", "find", f"{FAULTS}:HangsForLongRows", *SMALL]
    command += ["--cap", "2", "--case", "rows=64,256", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    while "case rows=256" not in process.stderr.readline():
        assert process.poll() is None
    wait_until(lambda: len(descendants(process.pid)) >= 2)
    children = descendants(process.pid)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted" in errors
    assert [finding["microbatch"] for finding in json.loads(output)["findings"]] == [2]
    wait_until(lambda: not any(child.is_running() for child in children), 10)


@pytest.mark.parametrize("strategy", ["guided", "doubling"])
def test_when_brim_itself_is_killed_all_that_its_probes_and_traces_started_dies_with_it(tmp_path: Path, strategy):
    command = [sys.executable, "-m", "brim", "find", f"{FAULTS}:HangsWithAChild", *SMALL, "--strategy", strategy]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path)
    wait_until(lambda: any(child.name() == "sleep" for child in descendants(process.pid)))
    children = descendants(process.pid)
    process.kill()
    process.wait()
    wait_until(lambda: not any(child.is_running() for child in children), 10)


def test_on_a_terminal_it_draws_a_live_table(tmp_path: Path):
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "brim", "find", f"{SIMPLE}:Evaluate", *SMALL, "--cap", "4", "--case", "rows=16,32"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(command, stdout=follower, stderr=follower, cwd=tmp_path, env=environment)
    os.close(follower)
    shown = b""
    while True:
        try:
            data = os.read(leader, 65536)
        except OSError:
            break
        shown += data
    os.close(leader)
    assert process.wait() == 0
    text = shown.decode(errors="replace")
    assert "probing 4" in text
    assert "confirming 4" in text
    assert "█" in text
    assert "\x1b[?25h" in text  # the cursor is shown again


@pytest.mark.parametrize(
    ("address", "settings", "code", "message"),
    [
        ("nowhere.py:Name", (), 2, "nowhere.py"),
        (f"{FAULTS}:StepRaises", SMALL, 1, "loss divided by nothing"),
        (f"{SIMPLE}:Train", ("--fill", "1.7"), 2, "fill is 1.7"),
    ],
)
def test_a_failure_is_a_json_document_too(brim_cli, address, settings, code, message):
    run = brim_cli("find", address, *settings, "--json")
    assert run.returncode == code
    document = json.loads(run.stdout)
    assert document["schema"] == "brim.error/1"
    assert message in document["error"]["message"]


@pytest.mark.usefixtures("heap")
def test_ctrl_c_while_the_workload_loads_ends_at_once_and_loads_nothing_again(tmp_path: Path):
    marks = tmp_path / "marks"
    marks.mkdir()
    module = tmp_path / "blocks.py"
    module.write_text(
        f"import os, threading\nopen(os.path.join({str(marks)!r}, str(os.getpid())), 'w').close()\n"
        "threading.Event().wait()\n"
    )
    command = [sys.executable, "-m", "brim", "find", f"{module}:Name", *SMALL, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while len(list(marks.iterdir())) < 2:  # the two servers that start together
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted." in stderr
    assert json.loads(stdout)["schema"] == "brim.error/1"
    assert len(list(marks.iterdir())) == 2
    assert not any(psutil.pid_exists(int(mark.name)) for mark in marks.iterdir())


def test_the_goal_fastest_gives_a_rate_and_a_wrong_goal_is_refused(brim_cli):
    run = brim_cli("find", f"{SIMPLE}:Train", "--goal", "fastest", "--cap", "64", "--json", "--no-cache")
    assert run.returncode == 0, run.stderr
    (finding,) = json.loads(run.stdout)["findings"]
    assert finding["stopped_by"] == ("cap" if finding["microbatch"] == 64 else "rate")
    assert finding["confirmed"]
    assert len(finding["probes"]) <= 6
    assert {len(laps) for laps in finding["probes"][0]["laps"].values()} == {FIRST_ROUNDS}
    rates = {rate["microbatch"]: rate["samples_per_second"] for rate in finding["throughput"]["rates"]}
    assert finding["microbatch"] in rates
    wrong = brim_cli("find", f"{SIMPLE}:Train", "--goal", "cheapest")
    assert wrong.returncode == 2
    assert "largest, fastest" in wrong.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["gpus"], ["history", "--json"], ["find", "nowhere.py:Train", "--json"]])
def test_an_output_that_cannot_be_written_is_exit_code_1_and_one_line(tmp_path: Path, arguments, unbuffered):
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "brim", *arguments]
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1] == "Error: standard output: No space left on device."
    assert "Traceback" not in run.stderr


def test_a_reader_that_goes_away_is_no_failure():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        run = subprocess.run([sys.executable, "-m", "brim", "gpus"], stdout=gone, stderr=subprocess.PIPE, text=True)
    assert run.returncode == 0
    assert run.stderr == ""
