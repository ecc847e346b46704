import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from brim.cli.app import app
from brim.errors import InputError

SIMPLE = Path(__file__).parents[2] / "workloads" / "simple.py"


def plan_of(brim_cli, *arguments):
    run = brim_cli("plan", *arguments, "--json")
    assert run.returncode in (0, 3), run.stderr
    document = json.loads(run.stdout)
    assert document["schema"] == "brim.plan/1"
    return document


def test_the_arithmetic_is_printed_and_then_what_to_paste(brim_cli):
    run = brim_cli("plan", "--effective", "80", "--largest", "4", "--ranks", "5")
    assert run.returncode == 0
    assert "80 samples ÷ 5 ranks" in run.stdout
    assert "4 × 4 × 5" in run.stdout
    assert "--per_device_train_batch_size 4 \\\n" in run.stdout
    assert "--gradient_accumulation_steps 4 \\\n" in run.stdout


def test_all_frameworks_are_in_the_document_and_on_the_screen(brim_cli):
    document = plan_of(brim_cli, "--effective", "80", "--largest", "4", "--ranks", "5")
    assert document["microbatches"] == [4, 4, 4, 4]
    assert set(document["paste"]) == {"transformers", "accelerate", "lightning", "deepspeed", "torch"}
    shown = brim_cli("plan", "--effective", "80", "--largest", "4", "--ranks", "5", "--framework", "all").stdout
    for paste in document["paste"].values():
        assert paste["text"].splitlines()[0] in shown


def test_an_uneven_plan_says_what_the_flags_cannot(brim_cli):
    run = brim_cli("plan", "--effective", "100", "--largest", "40")
    assert "34 + 33 + 33" in run.stdout
    assert "25 × 4: exact, with 1 microbatch more" in run.stdout


def test_settings_are_answered_with_what_they_amount_to(brim_cli):
    document = plan_of(brim_cli, "--microbatch", "4", "--accumulation", "5", "--ranks", "4", "--largest", "16")
    assert document["effective"] == 80
    assert [advice["topic"] for advice in document["advice"]] == ["gradients", "slow"]


def test_a_microbatch_to_keep_is_answered_with_the_choices_near_the_target(brim_cli):
    document = plan_of(brim_cli, "--effective", "100", "--microbatch", "32")
    assert document["choices"][0] == {"microbatch": 32, "accumulation": 3, "effective": 96, "difference": -4}
    assert document["target"] == 100
    assert "4 short" in brim_cli("plan", "--effective", "100", "--microbatch", "32").stdout


def test_a_measurement_is_extrapolated_with_a_warning(brim_cli):
    arguments = ("--measured", "512:0.1GB", "--target", "35GB", "--memory", "80GB")
    run = brim_cli("plan", *arguments)
    for text in ("179,200", "8,960", "8,192", "8192 → 4096 → 2048 → 1024, then activation checkpointing", "brim find"):
        assert text in run.stdout
    document = plan_of(brim_cli, *arguments, "--effective", "20000")
    assert document["measurement"]["step_down"] == [8192, 4096, 2048, 1024]
    assert document["microbatches"] == [6667, 6667, 6666]
    assert any("brim find" in note for note in document["notes"])


def test_a_model_size_is_answered_with_its_memory_and_accumulation(brim_cli):
    arguments = ("--model", "8b", "--gpu", "b200", "--effective", "128", "--seq-len", "2048")
    run = brim_cli("plan", *arguments)
    assert "16.1 GB" in run.stdout
    assert "32.1 GB" in run.stdout
    document = plan_of(brim_cli, *arguments)
    assert document["microbatch"] >= 1
    assert set(document["accumulations"]) == {"32", "64", "128"}
    held = document["model"]["held"]
    assert [round(held[name] / 1e9) for name in ("parameters_bytes", "gradients_bytes", "optimizer_bytes")] == [
        16,
        16,
        32,
    ]


def test_nothing_that_fits_is_exit_code_3_with_what_it_would_take(brim_cli):
    run = brim_cli("plan", "--model", "70b", "--gpu", "a100-80gb", "--effective", "64")
    assert run.returncode == 3
    assert "What it would take" in run.stdout
    assert "activation checkpointing" in run.stdout
    document = plan_of(brim_cli, "--model", "70b", "--gpu", "a100-80gb", "--effective", "64")
    assert document["microbatch"] is None
    assert document["takes"]
    assert document["ladder"][0]["source"]


def test_a_config_file_stands_for_any_model(brim_cli, tmp_path):
    fields = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
    (tmp_path / "config.json").write_text(json.dumps({**fields, "n_positions": 1024}))
    arguments = ("--config", "config.json", "--memory", "24GB", "--seq-len", "1024", "--precision", "fp32")
    document = plan_of(brim_cli, *arguments, "--ladder")
    assert document["model"]["num_parameters"] == 124_439_808
    assert [rung["key"] for rung in document["ladder"]][:2] == ["fused", "autocast"]


def test_the_rule_of_thumb_stays_with_a_line_on_what_it_leaves_out(brim_cli):
    document = plan_of(
        brim_cli,
        "--model",
        "7b",
        "--memory",
        "24GB",
        "--rule",
        "thumb",
        "--task",
        "classification",
        "--effective",
        "64",
    )
    assert (document["microbatch"], document["accumulation"]) == (32, 2)
    assert any("leaves out weights, gradients and optimizer" in note for note in document["notes"])
    nothing = brim_cli("plan", "--model", "70b", "--memory", "5GB", "--rule", "thumb")
    assert nothing.returncode == 3
    assert "a GPU with 5.62 GB" in nothing.stdout


def test_a_workload_is_traced_and_planned(brim_cli):
    run = brim_cli("plan", "--workload", f"{SIMPLE}:Train", "--memory", "2GB", "--effective", "8", "--ladder")
    assert run.returncode == 0
    assert "largest microbatch" in run.stdout
    assert "Memory ladder" in run.stdout
    assert "tracing it with activation checkpointing" in run.stderr


def test_a_workload_that_does_not_fit_is_exit_code_3_with_what_it_would_take(brim_cli):
    run = brim_cli("plan", "--workload", f"{SIMPLE}:Train", "--memory", "410MiB", "--fill", "1", "--json")
    assert run.returncode == 3
    document = json.loads(run.stdout)
    assert document["traced"]["missing_bytes"] > 0
    assert "a GPU with" in document["takes"][-1]


def test_advice_comes_with_the_numbers(brim_cli):
    run = brim_cli(
        "plan", "--effective", "256", "--largest", "64", "--ranks", "2", "--lr", "3e-4@64", "--dataset", "50000",
        "--symptom", "unstable", "--timing", "8:80ms", "--timing", "32:0.2s",
    )  # fmt: skip
    for text in ("0.0006", "0.996006", "195 steps an epoch", "make 512", "89%"):
        assert text in run.stdout


def test_lines_to_paste_are_never_wrapped(brim_cli):
    run = brim_cli(
        "plan", "--model", "8b", "--gpu", "a100-80gb", "--effective", "64", env={**os.environ, "COLUMNS": "60"}
    )
    assert '  return F.cross_entropy(output_layer(hidden).float(), labels, reduction="sum")\n' in run.stdout


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (["--microbatch", "2", "--accumulation", "8", "--ranks", "5", "--symptom", "unstable"], (2, 16)),
        (["--microbatch", "4", "--accumulation", "16", "--largest", "64", "--symptom", "slow"], (64, 1)),
        (["--microbatch", "8", "--accumulation", "2", "--symptom", "oom"], (4, 4)),
        (["--microbatch", "8", "--accumulation", "2", "--largest", "4"], (4, 4)),
        (["--microbatch", "8", "--accumulation", "2", "--largest", "8"], (8, 2)),
    ],
)
def test_what_is_to_be_pasted_follows_the_advice(brim_cli, arguments, flags):
    pasted = brim_cli("plan", *arguments).stdout
    assert f"--per_device_train_batch_size {flags[0]} " in pasted
    assert f"--gradient_accumulation_steps {flags[1]} " in pasted
    assert ("as advised" in pasted) is (flags != (8, 2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "What fits?"),
        (["--largest", "4"], "Which effective batch?"),
        (["--effective", "7", "--largest", "4", "--ranks", "8"], "Use an effective batch of 8 or more"),
        (["--effective", "0", "--largest", "4"], "effective is 0"),
        (["--effective", "8", "--largest", "0"], "nothing fits"),
        (["--effective", "8", "--largest", "-2"], "nothing fits"),
        (["--effective", "8", "--largest", "4", "--ranks", "0"], "ranks is 0"),
        (["--effective", "2", "--largest", "4", "--ranks", "8"], "at most 2 ranks"),
        (["--effective", "8", "--largest", "4", "--model", "7b"], "each say what fits"),
        (["--effective", "8", "--largest", "4", "--gpu", "t4"], "--gpu does not go with --largest"),
        (["--effective", "8", "--largest", "4", "--seq-len", "9"], "It goes with --model or --config"),
        (["--microbatch", "4"], "needs one of two"),
        (["--microbatch", "4", "--accumulation", "2", "--effective", "8"], "needs one of two"),
        (["--measured", "512:0.1GB"], "How much may it use?"),
        (["--measured", "512", "--target", "35GB"], "is no measurement"),
        (["--measured", "8:1GB", "--target", "9GB", "--memory", "8GB"], "above the memory"),
        (["--measured", "8:1GB", "--target", "9GB", "--profile", "wild"], "no profile 'wild'"),
        (["--measured", "8:1GB", "--target", "9GB", "--profile", "balanced", "--safety", "2"], "Pass one of them"),
        (["--model", "7b"], "Which GPU?"),
        (["--model", "7b", "--gpu", "t4", "--memory", "8GB"], "Pass one of them"),
        (["--model", "900b", "--gpu", "t4"], "Sizes:"),
        (["--model", "7b", "--gpu", "t4", "--seq-len", "0"], "seq_len is 0"),
        (["--model", "7b", "--gpu", "t4", "--rule", "gut"], "shapes, thumb"),
        (["--model", "7b", "--gpu", "t4", "--fill", "1.5"], "fill is 1.5"),
        (["--config", "missing.json", "--gpu", "t4"], "cannot be read"),
        (["--workload", "missing.py:Name", "--gpu", "t4"], "There is no file"),
        (["--workload", f"{SIMPLE}:Train", "--gpu", "t4", "--ranks", "0"], "ranks is 0"),
        (["--workload", f"{SIMPLE}:Train", "--gpu", "t4", "--ranks", "9", "--effective", "8"], "of 9 or more"),
        (["--model", "7b", "--gpu", "t4", "--ranks", "-1"], "ranks is -1"),
        (["--model", "70b", "--gpu", "t4", "--effective", "0"], "effective is 0"),
        (["--measured", "8:1GB", "--target", "9GB", "--effective", "-1"], "effective is -1"),
        (["--effective", "9", "--microbatch", "1", "--ranks", "0"], "ranks is 0"),
        (["--microbatch", "0", "--accumulation", "1"], "microbatch is 0"),
        (["--workload", f"{SIMPLE}:Train", "--gpu", "t4", "--case", "px=1,2"], "2 cases"),
        (["--effective", "8", "--largest", "4", "--lr", "3e-4"], "RATE@BATCH"),
        (["--effective", "8", "--largest", "4", "--lr-rule", "sgd"], "needs the rate"),
        (["--effective", "8", "--largest", "4", "--lr", "3e-4@8", "--lr-rule", "sgd", "--beta2", "0.9"], "is Adam's"),
        (["--effective", "8", "--largest", "4", "--timing", "8"], "MICROBATCH:TIME"),
        (["--effective", "8", "--largest", "4", "--timing", "8:1s"], "at least two"),
        (["--effective", "8", "--largest", "4", "--symptom", "sad"], "unstable, slow"),
        (["--effective", "8", "--largest", "4", "--dataset", "0"], "dataset's size is 0"),
        (["--effective", "8", "--largest", "4", "--framework", "jax"], "no framework 'jax'"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_with_what_to_do(arguments, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=re.escape(message)):
        app(["plan", *arguments], standalone_mode=False)


def test_bad_input_is_exit_code_2_and_one_clear_message(brim_cli):
    run = brim_cli("plan", "--effective", "7", "--largest", "4", "--ranks", "8")
    assert run.returncode == 2
    assert run.stderr.startswith("Error: Effective batch 7 is below 8 ranks: each needs at least one sample. Use an")
    assert "Traceback" not in run.stderr


def test_planning_without_a_workload_does_not_import_torch():
    code = (
        "import sys; sys.argv = ['brim', 'plan', '--model', '8b', '--gpu', 'a100-80gb']\n"
        "from brim.cli import main\n"
        "try: main()\n"
        "except SystemExit as stop: assert stop.code == 3\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_help_has_its_options_in_panels_and_every_command_in_one_whole_line(brim_cli):
    options = brim_cli("plan", "--help").stdout
    assert (
        options.index("What you want:")
        < options.index("--effective <int>")
        < options.index("What fits, if you know it:")
    )
    for group, others in (("plan", ("history", "rollback")), ("sweep", ("results",))):
        told = brim_cli(group, "--help").stdout
        assert told.splitlines()[0].partition(f" {group} ")[2].startswith("[OPTIONS]"), "no name that nobody types"
        listed = told.partition("\nCommands:\n")[2].splitlines()
        assert tuple(line.split()[0] for line in listed) == others
    commands = brim_cli("--help").stdout.partition("Commands:")[2]
    assert all(line.endswith(".") and not line.endswith("..") for line in commands.strip().splitlines())


def test_a_profile_is_named_where_it_takes_less_than_fits(brim_cli):
    run = brim_cli("plan", "--effective", "64", "--largest", "10", "--profile", "conservative")
    assert run.returncode == 0, run.stderr
    assert "10 fit × 0.8" in run.stdout
    assert "the profile conservative" in run.stdout


def test_a_mistyped_command_is_told_with_the_one_that_was_meant(brim_cli):
    run = brim_cli("plan", "roolback")
    assert run.returncode == 2
    assert "Did you mean 'rollback'?" in run.stderr
    missing = brim_cli("sweep", "results.yaml")
    assert missing.returncode == 2
    assert "Did you mean" not in missing.stderr, "a file's name is no command"


def test_a_wrong_effective_batch_is_told_before_what_else_is_missing(brim_cli):
    run = brim_cli("plan", "--effective", "0")
    assert run.returncode == 2
    assert "effective is 0" in run.stderr
