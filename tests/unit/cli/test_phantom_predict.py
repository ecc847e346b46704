"""`brim predict` on phantoms, as it is typed: torch's own CUDA build runs the script."""

import json
import sys
from pathlib import Path

import pytest
from tests.phantoms import with_cuda_torch

from brim.errors import InputError

TESTS = Path(__file__).parents[2]
GPT = str(TESTS.parent / "examples" / "train_gpt.py")
SIMPLE = TESTS / "workloads" / "simple.py"

pytestmark = pytest.mark.slow


@pytest.fixture
def predict(brim_cli):
    """Run `brim predict` as a user whose torch has CUDA."""

    def run(*words, **environment):
        return brim_cli("predict", *map(str, words), env=with_cuda_torch(environment))

    return run


def test_a_script_is_searched_to_its_largest_batch(predict):
    run = predict("--gpu", "t4", "--json", "--", sys.executable, GPT, "--batch_size", "{batch}")
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert (told["schema"], told["engine"], told["kind"]) == ("brim.prediction/1", "phantom", "train")
    probes = {probe["microbatch"]: probe["verdict"] for probe in told["probes"]}
    assert probes[told["largest"]] == "fits"
    assert probes[told["largest"] + 1] == "oom"
    assert len(probes) <= 8
    (largest,) = [peak for peak in told["peaks"] if peak["microbatch"] == told["largest"]]
    assert (
        largest["allocated_bytes"] < largest["reserved_bytes"] < largest["device_bytes"] <= told["gpu"]["memory_bytes"]
    )
    assert sum(largest["breakdown"].values()) == largest["allocated_bytes"]


def test_tables_say_what_held_the_memory_and_what_was_refused_in_which_line(predict):
    run = predict("--gpu", "t4", "--", sys.executable, GPT, "--batch_size", "{batch}")
    assert "on a phantom GPU with torch" in run.stdout
    assert "activations" in run.stdout
    assert "holds at the peak" in run.stdout
    assert "does not fit: asked for" in run.stdout
    assert "train_gpt.py:" in run.stdout


def test_one_size_on_two_cards_is_a_column_each(predict):
    words = (
        "--gpu",
        "t4",
        "--gpu",
        "a100-80gb",
        "--microbatch",
        "32",
        "--",
        sys.executable,
        GPT,
        "--batch_size={batch}",
    )
    run = predict(*words)
    assert run.returncode == 0, run.stderr
    assert "does not fit" in run.stdout
    assert "fits, " in run.stdout


def test_a_workload_runs_on_a_phantom_for_each_case(predict):
    run = predict(f"{SIMPLE}:Train", "--memory", "2GiB", "--case", "rows=64,128", "--json")
    assert run.returncode == 0, run.stderr
    few, many = json.loads(run.stdout)["predictions"]
    assert few["engine"] == many["engine"] == "phantom"
    assert few["largest"] > many["largest"] > 0


def test_a_script_that_never_uses_the_gpu_is_an_error_that_says_so(predict):
    run = predict(
        "--gpu", "t4", "--", sys.executable, GPT, "--device=cpu", "--tokens=8", "--steps=1", "--batch_size={batch}"
    )
    assert run.returncode == 1
    assert "never used the GPU" in run.stderr


def test_what_a_phantom_lacks_ends_the_search_with_its_name(predict, tmp_path):
    script = tmp_path / "spectrum.py"
    script.write_text(
        "import sys, torch\nmodel = torch.nn.Linear(8, 8).cuda()\n"
        "for _ in range(9): model(torch.fft.fft(torch.ones(int(sys.argv[1]), 8).cuda()).abs()).sum().backward()\n"
    )
    run = predict("--gpu", "t4", "--", sys.executable, script, "{batch}")
    assert run.returncode == 1
    assert "cufft" in run.stderr
    assert "--engine trace" in run.stderr


def test_nothing_fits_has_its_own_exit_code(predict):
    run = predict("--memory", "700MiB", "--", sys.executable, GPT, "--batch_size", "{batch}")
    assert run.returncode == 3
    assert "nothing fits" in run.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--gpu", "t4", "--engine", "trace", "--", "python", GPT, "{batch}"],
            "A trace runs a workload, not a command",
        ),
        (["--gpu", "t4", "--engine", "guess", "w.py:W"], "There is no engine 'guess'"),
        (["--gpu", "t4:40", "--", "python", GPT, "{batch}"], "A machine of phantoms has 1 to 16"),
        (["--gpu", "voodoo", "--", "python", GPT, "{batch}"], "voodoo"),
        (["--gpu", "mi300x", "--engine", "phantom", "w.py:W"], "ROCm"),
        (["--gpu", "t4", "--", "python", GPT, "--batch_size", "8"], "{batch}"),
    ],
)
def test_bad_input_is_told_with_what_to_do(predict, words, said):
    run = predict(*words)
    assert run.returncode == 2
    assert said in run.stderr


def test_torch_without_cuda_cannot_run_a_command(brim_cli):
    run = brim_cli("predict", "--gpu", "t4", "--", sys.executable, GPT, "--batch_size", "{batch}")
    assert run.returncode == 2
    assert "built without CUDA" in run.stderr
    assert "pip install torch" in run.stderr


def test_several_of_a_card_are_one_machine():
    from brim.cli.phantom_predict import find_machine

    assert find_machine("t4:2").num_gpus == 2
    with pytest.raises(InputError, match="no GPU"):
        find_machine("t4:two")
