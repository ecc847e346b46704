"""`brim sweep` as people and scripts use it."""

import json
import os
import pty
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.conftest import WORKLOADS

TRIALS = f"{WORKLOADS}/trials.py"


@pytest.fixture
def grid(tmp_path: Path):
    """Write a grid of one of the trials into the folder that the command line runs in."""

    def write(name="succeed", product=None, **document):
        whole = {
            "function": f"{TRIALS}:{name}",
            "base": {"dir": str(tmp_path), "value": 1, "room": 8, "hp": {"batch_size": 1}, "model": {"type": "a"}},
            "sweep": {"product": product or {"value": [1, 2, 3]}},
            **document,
        }
        (tmp_path / "grid.yaml").write_text(yaml.safe_dump(whole, sort_keys=False))

    return write


def test_a_dry_run_shows_the_count_and_the_trials_and_writes_nothing(brim_cli, grid, tmp_path):
    grid(product={"value": [1, 2], "hp.batch_size": [8, 16, 8]})
    run = brim_cli("sweep", "grid.yaml", "--dry-run")
    assert run.returncode == 0, run.stderr
    assert "2 value × 2 hp.batch_size = 4 trials (1 duplicate dropped)" in run.stdout
    assert re.findall(r"^ *(\d) +(\d) +(\d+) *$", run.stdout, flags=re.MULTILINE) == [
        ("1", "1", "8"),
        ("2", "1", "16"),
        ("3", "2", "8"),
        ("4", "2", "16"),
    ]
    assert "Results go to grid.sweep." in run.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"grid.yaml"}


def test_a_dry_run_as_json_is_the_documented_plan(brim_cli, grid):
    grid()
    document = json.loads(brim_cli("sweep", "grid.yaml", "--dry-run", "--json", "--max-experiments", "2").stdout)
    assert (document["schema"], document["num_trials"]) == ("brim.sweep/1", 2)
    assert [(trial["config"], trial["status"]) for trial in document["trials"]] == [
        ({"value": 1}, "planned"),
        ({"value": 2}, "planned"),
    ]


def test_a_dry_run_warns_of_every_trial_that_will_not_fit(brim_cli, grid):
    pairs = {"zip": {"pairs": {"model.type": ["r3d_18", "swin3d_b"], "hp.batch_size": [128, 128]}}}
    grid(sweep=pairs, memory_check={"memory": "16GB"})
    run = brim_cli("sweep", "grid.yaml", "--dry-run")
    assert "3.73 GiB" in run.stdout
    assert "swin3d_b with hp.batch_size 128 needs about 22.4 GiB" in run.stdout
    assert "hp.batch_size 64 would" in run.stdout
    document = json.loads(brim_cli("sweep", "grid.yaml", "--dry-run", "--json").stdout)
    assert len(document["warnings"]) == 1


def test_a_dry_run_of_a_million_trials_lists_the_first(brim_cli, grid):
    grid(product={f"k{n}": "0..9" for n in range(6)}, base=None)
    run = brim_cli("sweep", "grid.yaml", "--dry-run")
    assert "= 1,000,000 trials" in run.stdout
    assert "… and 999,800 more trials" in run.stdout
    document = json.loads(brim_cli("sweep", "grid.yaml", "--dry-run", "--json").stdout)
    assert (document["num_trials"], len(document["trials"])) == (1_000_000, 1000)


def test_a_run_ends_with_its_results_and_goes_on_where_it_stopped(brim_cli, grid):
    grid(metric="score")
    run = brim_cli("sweep", "grid.yaml", "--json", "--max-experiments", "2")
    assert run.returncode == 0, run.stderr
    assert [trial["metrics"]["score"] for trial in json.loads(run.stdout)["trials"]] == [2, 4]
    assert "2/2 ✓ value=2: done score=4" in run.stderr or "1/2 ✓ value=2: done score=4" in run.stderr
    run = brim_cli("sweep", "grid.yaml")
    assert "3 trials, 2 of them before" in run.stderr
    assert run.stderr.count("✓") == 1
    assert "3 trials: 3 done" in run.stdout
    assert "Best score: 6 with value=3" in run.stdout


def test_a_sweep_without_a_base_goes_on_and_is_shown_and_reported(brim_cli, tmp_path):
    document = {"command": [sys.executable, "-c", "pass", "{config}"], "sweep": {"product": {"lr": [0.1, 0.2]}}}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(document))
    assert brim_cli("sweep", "grid.yaml", "--max-experiments", "1").returncode == 0
    again = brim_cli("sweep", "grid.yaml", "--json")
    assert again.returncode == 0, again.stderr
    assert [trial["status"] for trial in json.loads(again.stdout)["trials"]] == ["done", "done"]
    results = brim_cli("sweep", "results", "grid.sweep", "--json")
    assert results.returncode == 0, results.stderr
    assert [trial["config"] for trial in json.loads(results.stdout)["trials"]] == [{"lr": 0.1}, {"lr": 0.2}]
    report = brim_cli("report", "grid.sweep")
    assert report.returncode == 0, report.stderr


def test_a_sweep_may_be_run_from_another_folder(brim_cli, tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(
        "import json, os, sys, yaml\n"
        "config = yaml.safe_load(open(sys.argv[1]))\n"
        "json.dump({'score': config['value']}, open(os.environ['BRIM_RESULT'], 'w'))\n"
    )
    (tmp_path / "project" / "grid.yaml").write_text(
        "command: python train.py {config}\nbase: base.yaml\nsweep: {product: {value: [1, 2]}}\n"
    )
    (tmp_path / "project" / "base.yaml").write_text("value: 0\n")
    run = brim_cli("sweep", "project/grid.yaml", "--json")
    assert run.returncode == 0, run.stderr
    document = json.loads(run.stdout)
    assert document["directory"] == "project/grid.sweep"
    assert [trial["metrics"] for trial in document["trials"]] == [{"score": 1}, {"score": 2}]


def test_results_are_a_table_csv_or_json_sorted_as_asked(brim_cli, grid):
    grid(metric="score")
    brim_cli("sweep", "grid.yaml")
    table = brim_cli("sweep", "results", "grid.sweep", "--sort", "metric").stdout
    assert re.findall(r"^ *([123]) +done", table, flags=re.MULTILINE) == ["3", "2", "1"]
    rows = brim_cli("sweep", "results", "grid.yaml", "--csv", "--sort", "score", "--reverse").stdout.splitlines()
    assert rows[0].startswith("id,status,seconds,peak_bytes,attempt,where,detail,value,score")
    assert [row.split(",")[-3] for row in rows[1:]] == ["1", "2", "3"]
    document = json.loads(brim_cli("sweep", "results", "grid.sweep", "--json").stdout)
    assert document["schema"] == "brim.sweep/1"
    assert len(document["trials"]) == 3


@pytest.mark.parametrize(("name", "code"), [("succeed", 0), ("fail", 1), ("run_out", 3)])
def test_the_exit_code_says_whether_every_trial_was_answered(brim_cli, grid, name, code):
    grid(name)
    assert brim_cli("sweep", "grid.yaml").returncode == code


def test_an_oom_beside_a_success_is_an_answer(brim_cli, grid):
    grid("run_out_above_batch", product={"hp.batch_size": [4, 64]})
    assert brim_cli("sweep", "grid.yaml").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.yaml"], "The sweep file nowhere.yaml cannot be read"),
        (["grid.yaml", "--engine", "slurm"], "There is no engine 'slurm'. Use one of: local, ray"),
        (["grid.yaml", "--retry", "ooom"], "--retry 'ooom' is no kind of exit. Use some of: done, oom,"),
        (["grid.yaml", "--max-experiments", "0"], "max_experiments is 0"),
        (["grid.yaml", "--jobs", "0"], "jobs is 0"),
        (["grid.yaml", "--ray-address", "here:1"], "A Ray address goes with --engine ray"),
        (["grid.yaml", "--memory", "lots"], "'lots' is not a memory size"),
        (["results", "grid.sweep"], "holds no sweep"),
        (["results", "grid.sweep", "--csv", "--json"], "Choose one of --csv and --json"),
    ],
)
def test_bad_input_is_exit_code_2_and_one_clear_message(brim_cli, grid, arguments, message):
    grid()
    run = brim_cli("sweep", *arguments)
    assert run.returncode == 2
    assert message in run.stderr
    assert "Traceback" not in run.stderr


def test_asking_for_a_gpu_that_is_not_there_is_refused_at_once(brim_cli, grid):
    grid()
    run = brim_cli("sweep", "grid.yaml", "--gpus", "64")
    assert run.returncode == 1
    assert "A trial asks for 64 GPUs, but this machine has" in run.stderr


def test_more_memory_than_there_is_is_refused_at_once(brim_cli, grid):
    grid()
    run = brim_cli("sweep", "grid.yaml", "--memory", "999TiB")
    assert run.returncode == 1
    assert re.search(r"asks for 999 TiB of memory, but this machine has", run.stderr.replace("\n", " "))


def test_a_cluster_that_is_not_there_is_refused_at_once(brim_cli, grid):
    grid()
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, so that no one else listens there either
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        run = brim_cli("sweep", "grid.yaml", "--engine", "ray", "--ray-address", address)
    assert run.returncode == 1
    assert f"No Ray cluster answers at {address}" in run.stderr


def test_an_mlflow_that_cannot_be_used_costs_a_warning(brim_cli, grid):
    grid(product={"value": [1]})
    run = brim_cli("sweep", "grid.yaml", "--mlflow", "nonsense://here")
    assert run.returncode == 0, run.stderr
    assert "results do not go to MLflow at nonsense://here" in run.stderr
    assert "1 trial: 1 done" in run.stdout


def test_on_a_terminal_it_draws_a_live_table(grid, tmp_path):
    grid(metric="score")
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "140", "LINES": "40"}
    command = [sys.executable, "-m", "brim", "sweep", "grid.yaml", "--jobs", "1"]
    process = subprocess.Popen(command, stdout=follower, stderr=follower, cwd=tmp_path, env=environment)
    os.close(follower)
    shown = b""
    while True:
        try:
            shown += os.read(leader, 65536)
        except OSError:
            break
    os.close(leader)
    assert process.wait() == 0
    text = shown.decode(errors="replace")
    assert "/3 · " in text
    assert "running" in text
    assert "\x1b[?25h" in text  # the cursor is shown again
