"""`brim watch` as people and scripts use it, on a machine without a GPU and on a terminal."""

import json
import os
import pty
import subprocess
import sys

import pytest

HOLDS = "import brim\nheld = bytearray(100 * 2**20)\nfor _ in range(3): brim.log_step()\n"


@pytest.fixture
def project(tmp_path):
    """A project whose plan expects between 50 and 400 MB of whatever device."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "train.py").write_text(HOLDS)

    def keep(low="50 MB", high="400 MB"):
        plan = "number = {n}\nmade = 2026-11-16T12:00:00Z\nmicrobatch = 8\naccumulation = 1\nranks = 1\neffective = 8\n"
        memory = f'memory = "500 MB"\npeak = ["{low}", "{high}"]\n'
        first = f'[[plan]]\n{plan.format(n=1)}{memory}verdict = "passed"\n'
        (tmp_path / "brim.toml").write_text(f"active = 2\n\n{first}\n[[plan]]\n{plan.format(n=2)}{memory}")

    keep()
    return keep


def test_in_a_pipe_there_are_log_lines(brim_cli):
    run = brim_cli("watch", "--count", "2", "--interval", "10ms")
    assert run.returncode == 0
    lines = run.stdout.splitlines()
    assert len(lines) == 2
    assert all("cpu " in line and "% busy" in line for line in lines)
    assert "\x1b" not in run.stdout


def test_json_is_a_document_a_line(brim_cli):
    run = brim_cli("watch", "--count", "2", "--interval", "10ms", "--json")
    for line in run.stdout.splitlines():
        document = json.loads(line)
        assert document["schema"] == "brim.watch/1"
        assert document["devices"][-1]["name"] == "cpu"


def test_a_job_that_runs_as_planned_passes_and_that_is_noted(brim_cli, project):
    run = brim_cli("watch", "--", sys.executable, "train.py", "--json")
    assert run.returncode == 0, run.stderr
    assert "peak within its range" in run.stdout
    assert "✗" not in run.stdout
    assert "Plan 2 passed" in run.stderr
    (_, plan) = json.loads(brim_cli("plan", "history", "--json").stdout)["plans"]
    assert plan["verdict"] == "passed"
    assert plan["step_seconds"] > 0


def test_a_job_that_fills_too_little_fails_and_the_way_back_is_offered(brim_cli, project):
    project(low="400 MB", high="450 MB")
    run = brim_cli("watch", "--json", "--", sys.executable, "train.py")
    assert run.returncode == 1
    verdict = json.loads(run.stdout.splitlines()[-1])
    assert not verdict["passed"]
    assert {check["name"] for check in verdict["checks"] if check["mark"] == "fail"} == {
        "fills what was planned",
        "peak within its range",
    }
    assert "Go back to it: brim plan rollback" in run.stderr
    assert brim_cli("plan", "rollback").stdout == "Plan 1 is active: 8 × 1 × 1 = 8.\n"


def test_a_plan_that_is_kept_while_the_job_runs_stays_active(brim_cli, project):
    save = [sys.executable, "-m", "brim", "plan", "--effective", "4", "--largest", "4", "--save"]
    job = f"import subprocess\nsubprocess.run({save!r}, check=True)\n{HOLDS}"
    run = brim_cli("watch", "--json", "--", sys.executable, "-c", job)
    assert "Kept as plan 3" in run.stderr
    listed = json.loads(brim_cli("plan", "history", "--json").stdout)
    assert listed["active"] == 3
    assert listed["plans"][1]["verdict"] is not None


def test_samples_of_a_job_as_json_carry_what_it_holds_and_does_and_what_was_planned(brim_cli, project):
    run = brim_cli("watch", "--json", "--", sys.executable, "train.py")
    first, *_, last = map(json.loads, run.stdout.splitlines())
    assert set(first["job"]) == {"seconds", "host_bytes", "gpu_bytes", "num_steps", "step_seconds"}
    assert first["plan"] == last["plan"] == 2
    low, high = first["planned"]["peak_bytes"]
    assert 0 < low < high < first["planned"]["memory_bytes"]


def test_a_job_that_did_no_step_leaves_the_plan_as_it_was(brim_cli, project, tmp_path):
    before = (tmp_path / "brim.toml").read_text()
    run = brim_cli("watch", "--json", "--", sys.executable, "-c", "print('hello')")
    assert run.returncode == 0, run.stdout
    assert "Plan 2 is not judged: no step of the job was seen" in run.stderr
    assert json.loads(run.stdout.splitlines()[-1])["not_judged"].startswith("no step")
    assert (tmp_path / "brim.toml").read_text() == before


def test_a_job_with_a_mistake_of_its_own_fails_and_the_plan_is_not_judged(brim_cli, project):
    run = brim_cli("watch", sys.executable, "-c", "print('to stdout'); undefined")
    assert run.returncode == 1
    assert run.stdout.startswith("to stdout\n")
    assert "NameError" in run.stderr
    assert "Plan 2 is not judged" in run.stderr
    assert json.loads(brim_cli("plan", "history", "--json").stdout)["plans"][1]["verdict"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "no-such-program"], "no-such-program cannot be started"),
        (["--"], "Nothing stands after --"),
        (["--count", "0"], "--count is 0"),
        (["--count", "2", "--", "true"], "--count does not go with a job"),
        (["--interval", "soon"], "'soon' is not a time"),
    ],
)
def test_bad_input_is_exit_code_2_and_one_clear_message(brim_cli, arguments, message):
    run = brim_cli("watch", *arguments)
    assert run.returncode == 2
    assert message in run.stderr
    assert "Traceback" not in run.stderr


def test_on_a_narrow_terminal_it_draws_and_q_leaves(tmp_path):
    terminal, side = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "40", "LINES": "12"}
    command = [sys.executable, "-m", "brim", "watch", "--interval", "50ms"]
    with subprocess.Popen(command, stdin=side, stdout=side, stderr=side, env=environment, cwd=tmp_path) as watch:
        os.close(side)
        shown = b""
        while b"GiB of" not in shown:
            shown += os.read(terminal, 4096)
        os.write(terminal, b"q")
        try:
            while os.read(terminal, 4096):
                pass
        except OSError:
            pass  # the other side is closed
        assert watch.wait() == 0
    os.close(terminal)
    assert b"q leaves" in shown
