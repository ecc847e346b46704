"""`brim plan --save`, `history` and `rollback` as people type them."""

import json

import pytest


@pytest.fixture
def project(tmp_path):
    (tmp_path / ".git").mkdir()
    return tmp_path / "brim.toml"


def test_plans_are_kept_listed_and_gone_back_to(brim_cli, project):
    first = brim_cli("plan", "--effective", "256", "--largest", "12", "--save")
    assert "Kept as plan 1" in first.stderr
    second = brim_cli("plan", "--effective", "256", "--largest", "16", "--profile", "conservative", "--save", "--json")
    assert json.loads(second.stdout)["microbatch"] == 12
    listed = json.loads(brim_cli("plan", "history", "--json").stdout)
    assert listed["schema"] == "brim.plans/1"
    assert listed["active"] == 2
    assert [plan["source"] for plan in listed["plans"]] == [
        "brim plan --effective 256 --largest 12",
        "brim plan --effective 256 --largest 16 --profile conservative",
    ]
    back = brim_cli("plan", "rollback")
    assert back.returncode == 2
    assert "brim plan rollback --to NUMBER" in back.stderr
    assert brim_cli("plan", "rollback", "--to", "1").stdout == "Plan 1 is active: 14 × 12 + 8 × 11 = 256.\n"
    assert "▸ 1" in brim_cli("plan", "history").stdout


def test_a_file_without_plans_is_said_to_have_none(brim_cli, project):
    project.write_text("")
    run = brim_cli("plan", "history")
    assert run.returncode == 0
    assert run.stdout.startswith(f"No plan is kept in {project} yet.")


def test_a_plan_of_a_device_keeps_what_its_job_should_use(brim_cli, project):
    brim_cli("plan", "--effective", "64", "--model", "7b", "--method", "lora", "--gpu", "a100-80gb", "--save")
    (plan,) = json.loads(brim_cli("plan", "history", "--json").stdout)["plans"]
    low, high = plan["peak_bytes"]
    assert 0 < low < high <= plan["memory_bytes"]


def test_profiles_take_less_or_more_of_what_fits(brim_cli):
    def largest(profile):
        arguments = ("--effective", "64", "--model", "1.5b", "--seq-len", "512", "--gpu", "a100-80gb")
        return json.loads(brim_cli("plan", *arguments, "--profile", profile, "--json").stdout)["largest"]

    assert 0 < largest("conservative") < largest("balanced") <= largest("aggressive")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "history"], "There is no brim.toml here or above."),
        (["plan", "--effective", "8", "--largest", "4", "--profile", "bold"], "There is no profile 'bold'."),
        (
            ["plan", "--model", "7b", "--gpu", "t4", "--fill", "0.5", "--profile", "balanced"],
            "--profile and --fill each say",
        ),
    ],
)
def test_bad_input_is_exit_code_2_and_one_clear_message(brim_cli, project, arguments, message):
    run = brim_cli(*arguments)
    assert run.returncode == 2
    assert message in run.stderr


def test_a_file_that_makes_no_sense_is_not_overwritten(brim_cli, project):
    project.write_text("active = 1\n[[plan]]\nnumber = 1\nmicrobatch = twelve\n")
    run = brim_cli("plan", "--effective", "8", "--largest", "4", "--save")
    assert run.returncode == 2
    assert "brim.toml, line 4: this is not TOML" in run.stderr
    assert "twelve" in project.read_text()
