"""The examples run as they stand, shortened: the first trials of each sweep, and the reference experiment."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import brim

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def examples(tmp_path):
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    return tmp_path / "examples"


@pytest.mark.slow
def test_the_video_grid_runs_its_first_three_pairs(examples):
    base = yaml.safe_load((examples / "video_base.yaml").read_text())
    base["data"]["num_clips"], base["hp"]["num_epochs"] = 128, 1
    (examples / "video_base.yaml").write_text(yaml.safe_dump(base))
    plan = brim.sweep(examples / "video_grid.yaml", dry_run=True)
    assert plan.num_trials == 9
    results = brim.sweep(examples / "video_grid.yaml", max_experiments=3)
    assert [(trial.config["model.type"], trial.config["hp.batch_size"]) for trial in results] == [
        ("r3d_18", 128),
        ("mc3_18", 64),
        ("r2plus1d_18", 128),
    ]
    assert [trial.status for trial in results] == ["done"] * 3, [trial.detail for trial in results]
    assert all(0 <= trial.metrics["accuracy"] <= 1 for trial in results)


def test_every_model_of_the_video_grid_trains(examples, monkeypatch):
    import torch

    monkeypatch.syspath_prepend(examples)
    from video_models import SMALL, make_model

    grid = yaml.safe_load((examples / "video_grid.yaml").read_text())["sweep"]["zip"]["model_batch"]
    assert grid["model.type"] == list(SMALL)
    for name in SMALL:
        scores = make_model(name, "small")(torch.randn(2, 3, 8, 16, 16))
        scores.sum().backward()
        assert scores.shape == (2, 4)


@pytest.mark.long
def test_each_number_of_crops_gets_the_batch_size_that_fits_it(examples):
    document = yaml.safe_load((examples / "crops.yaml").read_text())
    document["sweep"]["product"]["max_crops"] = [2, 13]
    (examples / "crops.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    few, many = brim.sweep(examples / "crops.yaml")
    assert (few.status, many.status) == ("done", "done"), (few.detail, many.detail)
    assert few.effective["hp.batch_size"] == 64
    assert 1 <= many.effective["hp.batch_size"] < 64
    assert few.metrics["accuracy"] < 0.6 < 0.9 < many.metrics["accuracy"]


def test_a_script_takes_its_batch_from_the_project_and_is_judged(brim_cli, examples, tmp_path):
    (tmp_path / ".git").mkdir()
    assert brim_cli("plan", "--effective", "4", "--largest", "2", "--save").returncode == 0
    run = brim_cli("watch", "--json", "--", sys.executable, "examples/watched.py")
    assert run.returncode == 0, run.stderr
    marks = {check["name"]: check["mark"] for check in json.loads(run.stdout.splitlines()[-1])["checks"]}
    assert marks["ran to its end"] == "pass"
    assert marks["peak within its range"] == "not seen"
    assert json.loads(brim_cli("plan", "history", "--json").stdout)["plans"][0]["step_seconds"] > 0


def multicrop_accuracy(folder, *arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return [*command, str(EXAMPLES / "multicrop_accuracy.py"), *arguments], {"cwd": folder, "env": environment}


@pytest.mark.slow
@pytest.mark.long
def test_the_reference_experiment_finds_batches_alike_on_all_ranks_and_counts_every_image_once(tmp_path):
    command, options = multicrop_accuracy(
        tmp_path, "--batch_size", "64", "--start_from_max_crops", "12", "--auto_adjust_batch_size",
        "--memory", "450MiB", "--num_images", "51",
    )  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, timeout=280, **options)
    assert run.returncode == 0, run.stderr
    assert "max_crops=12: estimate 19, cap 64" in run.stdout
    assert "max_crops=13: estimate 16, cap 64" in run.stdout
    results = json.loads((tmp_path / "multicrop_accuracy.json").read_text())["results"]
    assert list(results) == ["12", "13"]
    assert all(1 <= result["batch_size"] < 64 and result["num_images"] == 51 for result in results.values())
    assert results["13"]["accuracy"] > 0.95


@pytest.mark.slow
@pytest.mark.long
def test_the_reference_experiment_goes_on_after_a_kill(tmp_path):
    command, options = multicrop_accuracy(tmp_path, "--batch_size", "8", "--start_from_max_crops", "11")
    output = tmp_path / "multicrop_accuracy.json"
    command += ["--num_images", "100"]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True, **options)
    try:
        assert any("max_crops=11: accuracy" in line for line in process.stdout)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    known = json.loads(output.read_text())["results"]["11"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, **options)
    assert run.returncode == 0, run.stderr
    results = json.loads(output.read_text())["results"]
    assert results["11"] == known
    assert results["11"]["accuracy"] < results["13"]["accuracy"]
    run = subprocess.run([*command, "--num_images", "7"], capture_output=True, text=True, timeout=200, **options)
    assert run.returncode != 0
    assert "Use another --output" in run.stderr
