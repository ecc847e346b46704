"""`brim report` as people use it."""

import json

from tests.conftest import WORKLOADS
from tests.unit.reporting import documents as made

SIMPLE = f"{WORKLOADS}/simple.py"


def test_what_other_commands_wrote_becomes_one_page(brim_cli, tmp_path):
    predicted = brim_cli("predict", f"{SIMPLE}:Train", "--gpu", "t4", "--cap", "64", "--json")
    (tmp_path / "predicted.json").write_text(predicted.stdout)
    planned = brim_cli("plan", "--effective", "100", "--largest", "12", "--json")
    (tmp_path / "found.json").write_text(json.dumps(made.findings()))
    run = brim_cli("report", "predicted.json", "-", "found.json", "--title", "Tuesday's", input=planned.stdout)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("report.html: ")
    page = (tmp_path / "report.html").read_text()
    assert "<title>Tuesday&#39;s</title>" in page
    assert "One step in time, at microbatch 64" in page
    assert "12 + 8 × 11 = 100" in page


def test_a_sweeps_directory_becomes_a_page(brim_cli, tmp_path):
    base = {"dir": str(tmp_path), "value": 1}
    grid = {"function": f"{WORKLOADS}/trials.py:succeed", "base": base, "sweep": {"product": {"value": [1, 2]}}}
    (tmp_path / "grid.yaml").write_text(json.dumps(grid))
    assert brim_cli("sweep", "grid.yaml").returncode == 0
    run = brim_cli("report", "grid.sweep", "-o", "sweep.html", "--json")
    document = json.loads(run.stdout)
    assert document["schema"] == "brim.report/1"
    assert document["documents"] == [{"source": "grid.sweep", "schema": "brim.sweep/1"}]
    assert document["bytes"] == (tmp_path / "sweep.html").stat().st_size


def test_a_dash_is_standard_output(brim_cli, tmp_path):
    run = brim_cli("report", "-", "-o", "-", input=json.dumps(made.findings()))
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("<!doctype html>")
    assert run.stdout.rstrip().endswith("</html>")
    assert run.stderr.endswith("kB to standard output.\n")
    assert not list(tmp_path.iterdir())


def test_bad_input_is_one_message_and_no_page(brim_cli, tmp_path):
    (tmp_path / "new.json").write_text('{"schema": "brim.plan/2"}')
    for arguments, message in (
        (["missing.json"], "missing.json cannot be read: No such file or directory."),
        (["new.json"], "is a brim.plan/2; this brim knows brim.plan/1."),
        (["new.json", "--out", "."], ". is a folder."),
        (["new.json", "-o", "-", "--json"], "--out - and --json both write to standard output."),
        ([], "Missing argument"),
    ):
        run = brim_cli("report", *arguments)
        assert run.returncode == 2
        assert message in run.stderr
        assert "Traceback" not in run.stderr
    assert not (tmp_path / "report.html").exists()
