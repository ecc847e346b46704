import json
from pathlib import Path

import pytest

from brim.cli.phantom_predict import find_machines

SIMPLE = Path(__file__).parents[2] / "workloads" / "simple.py"


def test_the_largest_is_told_with_its_bounds_its_memory_and_its_modules(brim_cli):
    run = brim_cli("predict", f"{SIMPLE}:Train", "--gpu", "rtx-3090", "--cap", "64")
    assert run.returncode == 0
    assert "rtx-3090" in run.stdout
    assert "with likely bounds" in run.stdout
    assert "holds at the peak" in run.stdout


def test_json_is_the_documented_prediction(brim_cli):
    run = brim_cli("predict", f"{SIMPLE}:Train", "--gpu", "rtx-3090", "--cap", "64", "--json")
    document = json.loads(run.stdout)
    assert document["schema"] == "brim.prediction/1"
    assert document["gpu"]["name"] == "rtx-3090"
    assert document["largest"] == 64
    assert document["interval"][0] <= 64 <= document["interval"][1]
    peak = document["peaks"][0]
    assert peak["microbatch"] == 1
    assert peak["allocated_bytes"] <= peak["reserved_bytes"] < peak["device_bytes"]
    assert set(peak["breakdown"]) == {"parameters", "gradients", "optimizer", "activations", "inputs", "temporary"}
    assert document["modules"]


def test_json_is_one_document_whatever_the_workload_writes(brim_cli, tmp_path):
    path = tmp_path / "noisy.py"
    path.write_text(
        "import os\n"
        "print('loading')\n"
        "os.system('echo from a command')\n"
        f"exec(open({str(SIMPLE)!r}).read())\n"
        "class Noisy(Train):\n"
        "    def step(self, batch):\n"
        "        print('a step')\n"
        "        os.write(1, b'past Python')\n"
        "        super().step(batch)\n"
    )
    run = brim_cli("predict", f"{path}:Noisy", "--gpu", "rtx-3090", "--cap", "8", "--json")
    assert json.loads(run.stdout)["largest"] == 8
    for written in ("loading", "from a command", "a step", "past Python"):
        assert written in run.stderr


def test_nothing_fits_is_exit_code_3_with_what_is_missing(brim_cli):
    run = brim_cli("predict", f"{SIMPLE}:Train", "--memory", "410MiB")
    assert run.returncode == 3
    assert "Microbatch 1 lacks" in run.stdout


def test_of_many_predictions_the_answers_alone_are_shown(brim_cli):
    run = brim_cli("predict", f"{SIMPLE}:Train", "--gpu", "t4", "--gpu", "l4", "--gpu", "a40", "--cap", "8")
    assert "with likely bounds" in run.stdout
    assert "memory by kind" not in run.stdout
    assert "is shown of at most two; ask for one case on one GPU" in run.stdout
    assert "tracing default for t4" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "rtx-3900"], "Nearest: rtx-3090"),
        ([], "Which GPU?"),
        (["--gpu", "t4", "--microbatch", "0"], "--microbatch is 0"),
        (["--gpu", "t4", "--fill", "1.7"], "fill is 1.7"),
        (["--gpu", "t4", "--microbatch", "4", "--cap", "2"], "Use one of them"),
        (["--memory", "12parsecs"], "'12parsecs' is not a memory size"),
        (["--memory", "23.7"], "Memory size '23.7' has no unit"),
    ],
)
def test_bad_input_is_exit_code_2_and_one_clear_message(brim_cli, arguments, message):
    run = brim_cli("predict", f"{SIMPLE}:Train", *arguments)
    assert run.returncode == 2
    assert message in run.stderr
    assert "Traceback" not in run.stderr


def test_the_catalog_is_listed(brim_cli):
    assert "a100-80gb" in brim_cli("gpus").stdout
    listed = json.loads(brim_cli("gpus", "--json").stdout)
    assert {"name", "memory_bytes", "capability"} <= set(listed["gpus"][0])


@pytest.mark.parametrize(
    ("source", "message"),
    [("import nothere\n", "No module named 'nothere'"), ("def step(:\n", "SyntaxError: invalid syntax")],
)
def test_a_file_that_cannot_be_loaded_is_told_with_its_own_traceback(brim_cli, tmp_path, source, message):
    (tmp_path / "broken.py").write_text(source)
    run = brim_cli("predict", "broken.py:Train", "--gpu", "t4", "--json")
    assert run.returncode == 1
    assert message in json.loads(run.stdout)["error"]["message"]
    assert 'broken.py", line 1' in run.stderr
    assert "brim/cli" not in run.stderr


def test_a_case_that_cannot_be_traced_is_named(brim_cli, tmp_path):
    (tmp_path / "asks.py").write_text(
        "import sys, torch\n"
        f"sys.path.insert(0, {str(SIMPLE.parent)!r})\n"
        "from simple import Evaluate\n\n"
        "class Asks(Evaluate):\n"
        "    def step(self, batch):\n"
        "        if self.case['rows'] == 64:\n"
        "            torch.zeros(int(batch.sum()))\n"
        "        super().step(batch)\n"
    )
    asked = ("predict", "asks.py:Asks", "--gpu", "t4", "--case", "rows=64,32", "--cap", "8")
    run = brim_cli(*asked)
    assert run.returncode == 1
    assert "Case rows=64: step does not run on fake tensors" in run.stderr
    assert "rows=32" in run.stdout
    assert "≥ 8" in run.stdout
    run = brim_cli(*asked, "--json")
    assert run.returncode == 1
    document = json.loads(run.stdout)
    assert [each["case"] for each in document["predictions"]] == [{"rows": 32}]
    assert "Case rows=64" in document["error"]["message"]


def test_every_memory_is_a_card_of_its_own():
    assert [each.gpu.memory_bytes for each in find_machines(["t4"], ["1GiB", "2GiB"])[1:]] == [2**30, 2**31]
    assert len(find_machines(["t4", "t4"], ["1GiB", "1GiB"])) == 2


def test_a_case_that_fits_one_of_the_gpus_has_an_answer(brim_cli):
    asked = ("predict", f"{SIMPLE}:Evaluate", "--memory", "401MiB", "--case", "rows=32", "--cap", "8")
    run = brim_cli(*asked, "--gpu", "t4")
    assert run.returncode == 0
    assert "nothing fits" in run.stdout
