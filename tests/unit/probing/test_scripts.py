"""Scripts that know nothing of brim, run as they are under a real kernel limit."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import brim
from brim.cases import Case
from brim.devices import Device
from brim.errors import InputError, UnclearError, WorkloadError
from brim.probing.scripts import Command, CommandProber

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parents[2] / "scripts"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def find(*words, **settings):
    settings = {"device": "cpu", "memory": "1GiB", "cache": False, "steps": 2, "start": 4, "cap": 4, **settings}
    return brim.find([sys.executable, *map(str, words)], **settings)


def find_odd(behaviour, **settings):
    return find(SCRIPTS / "odd.py", behaviour, "{batch}", **settings)


@pytest.mark.parametrize(
    ("words", "forward"),
    [
        (["plain.py", "--batch_size={batch}", "--workers=1", "--amp"], 2),
        (["plain.py", "--batch_size={batch}", "--compile"], 2),
        (["trainer.py", "--per_device_train_batch_size", "{batch}"], 2),
        (["accelerated.py", "--per_device_batch_size", "{batch}"], 4),
        (["lightened.py", "--batch_size", "{batch}"], 4),  # with two of validation before
    ],
)
def test_a_training_script_is_ended_after_its_steps(words, forward):
    findings = find(SCRIPTS / words[0], *words[1:], tries=1)
    assert (findings.kind, findings.ranks, findings[0].microbatch) == ("train", 1, 4)
    for probe in findings[0].probes:
        assert (probe.steps, probe.calls["optimizer"], probe.calls["forward"]) == (2, 2, forward)
        assert probe.samples == 4 * forward
        assert probe.step_seconds > 0


def test_the_largest_batch_of_a_script_is_found_under_a_real_limit():
    finding = find(
        SCRIPTS / "plain.py", "--batch_size={batch}", "--samples=16384", memory="576MiB", start=None, cap=16384
    )[0]
    assert finding.confirmed
    assert finding.stopped_by == "memory"
    assert finding.peak_bytes <= 0.9 * 576 * 2**20
    assert any(probe.verdict == "oom" and "DefaultCPUAllocator" in probe.detail for probe in finding.probes)


def test_every_rank_of_a_torchrun_job_counts_and_nothing_is_left():
    words = [*TORCHRUN, str(SCRIPTS / "plain.py"), "--batch_size={batch}"]
    findings = brim.find(words, device="cpu", memory="1GiB", cache=False, steps=2, start=8, cap=8)
    assert (findings.ranks, findings[0].microbatch) == (2, 8)
    assert all(probe.samples == 16 for probe in findings[0].probes)
    assert not [
        process for process in psutil.process_iter(["cmdline"]) if "--batch_size=8" in (process.info["cmdline"] or [])
    ]


@pytest.mark.parametrize(
    ("fault", "batch", "verdict", "detail"),
    [
        ("forward", 4, "oom", "rank 1: RuntimeError: .*DefaultCPUAllocator"),
        ("backward", 4, "oom", "rank 0: RuntimeError: .*DefaultCPUAllocator"),
        ("less", 2**16, "oom", "rank 1: RuntimeError: .*DefaultCPUAllocator"),
        ("killed", 4, "unclear", "of rank 1 was ended by SIGKILL"),
        ("hangs", 4, "unclear", "made no progress for 30 s and was ended"),
    ],
)
def test_what_happens_on_one_rank_decides_for_all(fault, batch, verdict, detail):
    command = Command((*TORCHRUN, str(SCRIPTS / "faulty_ranks.py"), fault, "{batch}"))
    device = Device(name="cpu", memory_bytes=2**30, fill=1.0)
    prober = CommandProber(command, device, (device.limit_bytes,), timeout_seconds=30)
    outcome = prober.probe(Case(), batch, steps=3)
    assert outcome.probe.verdict == verdict
    assert re.match(detail, outcome.probe.detail)


@pytest.mark.parametrize(
    ("behaviour", "kind", "calls"),
    [("evaluates", "eval", 2), ("generates", "generate", 10), ("by_hand", "train", 2)],
)
def test_a_step_is_what_the_script_repeats(behaviour, kind, calls):
    findings = find_odd(behaviour)
    assert findings.kind == kind
    assert all(probe.steps == 2 and probe.calls["forward"] == calls for probe in findings[0].probes)


def test_a_step_of_transformers_generate_is_a_whole_decode():
    findings = find(SCRIPTS / "generator.py", "--batch_size={batch}")
    assert findings.kind == "generate"
    assert all((probe.steps, probe.calls["forward"], probe.samples) == (2, 12, 48) for probe in findings[0].probes)


def test_an_evaluation_is_counted_by_forward_passes():
    words = ["--do_eval", "--per_device_eval_batch_size", "{batch}"]
    findings = find(SCRIPTS / "trainer.py", *words, tries=1)
    assert findings.kind == "eval"
    assert all(probe.samples == 8 for probe in findings[0].probes)


def test_a_script_that_ends_by_itself_fits_with_the_steps_it_ran():
    assert [probe.steps for probe in find_odd("short")[0].probes] == [1, 1]


def test_a_script_that_speaks_of_memory_and_goes_on_fits():
    assert find_odd("speaks_of_memory")[0].microbatch == 4


def test_a_script_that_survives_an_oom_with_less_has_not_run_its_batch():
    finding = find_odd("survives", tries=1)[0]
    assert finding.probes[0].verdict == "oom"


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("fails", "step failed at microbatch 4: RuntimeError: mat1 and mat2 shapes"),
        ("exits", "exit code 1 before its first step: no data in this folder"),
        ("leaves", "the command ended while 1 of its processes still ran"),
        ("unknown", "exit code 1 before its first step: there is no behaviour unknown"),
    ],
)
def test_a_failure_is_raised_with_its_reason_and_a_log(behaviour, message):
    with pytest.raises(WorkloadError, match=message) as caught:
        find_odd(behaviour)
    log = Path(str(caught.value).rpartition("All that it printed: ")[2])
    assert log.is_file()
    assert not any("BRIM_LEFT" in process.environ() for process in psutil.process_iter() if _is_ours(process))


def test_data_that_ends_before_the_batch_is_no_answer():
    with pytest.raises(WorkloadError, match=r"saw no more at microbatch 8 than at 4: 3 samples at once.*--cap 3"):
        find_odd("small_data", cap=64, strategy=brim.searching.Doubling(), start=4)


def test_a_death_for_no_known_reason_is_unclear():
    with pytest.raises(UnclearError, match=r"ended 3 times for no known reason.*was ended by SIGKILL"):
        find_odd("dies")


def test_a_command_without_a_step_is_ended_after_the_timeout():
    with pytest.raises(WorkloadError, match="no step was seen within 1 s"):
        find("-c", "import threading; threading.Event().wait()  # {batch}", timeout=1)


@pytest.mark.parametrize(
    ("words", "settings", "message"),
    [
        (["python", "train.py", "--bs", "8"], {}, r"has no \{batch\}"),
        (["no-such-program", "{batch}"], {}, "There is no program 'no-such-program'"),
        (["python", "gone.py", "{batch}"], {}, "There is no file gone.py"),
        (["python", "-c", "{batch}"], {"cases": [{"crops": 2}]}, "The case 'crops' has no place"),
        (["python", "-c", "{batch}"], {"isolate": False}, "leave out isolate=False"),
        ([], {}, "is empty"),
    ],
)
def test_bad_commands_are_refused_before_anything_runs(words, settings, message):
    with pytest.raises(InputError, match=message):
        brim.find(words, **settings)


def test_a_folder_that_the_script_would_overwrite_is_named(caplog, tmp_path):
    (tmp_path / "weights.bin").write_text("precious")
    find_odd("short", tries=1)
    assert "overwrite" not in caplog.text
    find(SCRIPTS / "odd.py", "short", "{batch}", "--output_dir", tmp_path)
    assert f"it may overwrite what is in {tmp_path}" in caplog.text


def test_the_history_knows_a_command_until_its_script_changes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text((SCRIPTS / "odd.py").read_text())

    def num_probes():
        return len(find(script, "short", "{batch}", cache=True)[0].probes)

    assert [num_probes(), num_probes()] == [2, 1]
    script.write_text(script.read_text() + "\n# changed\n")
    assert num_probes() == 2


def test_the_command_line_takes_a_command_and_cases(brim_cli):
    words = [sys.executable, str(SCRIPTS / "plain.py"), "--batch_size", "{batch}", "--width", "{width}"]
    options = [
        "--device",
        "cpu",
        "--memory",
        "1GiB",
        "--cap",
        "2",
        "--start",
        "2",
        "--steps",
        "1",
        "--case",
        "width=32",
    ]
    run = brim_cli("find", *options, "--json", "--", *words)
    assert run.returncode == 0, run.stderr
    document = json.loads(run.stdout)
    assert (document["workload"], document["findings"][0]["case"]) == ("plain.py", {"width": 32})


def test_a_command_without_its_dashes_is_told_where_they_go(brim_cli):
    run = brim_cli("find", "python", "train.py", "--batch_size", "{batch}")
    assert run.returncode == 2
    assert "A command goes after --" in run.stderr


def test_an_environments_own_sitecustomize_still_runs(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    assert find_odd("short", tries=1)[0].microbatch == 4
    assert (tmp_path / "ran").exists()


def test_killing_brim_ends_the_command(tmp_path):
    sleep = f"import threading; threading.Event().wait()  # {{batch}} {tmp_path}"
    code = f"import brim; brim.find([{sys.executable!r}, '-c', {sleep!r}])"
    search = subprocess.Popen([sys.executable, "-c", code])
    try:
        command = _wait_for_child(search.pid, str(tmp_path))
    finally:
        search.kill()
        search.wait()
    psutil.wait_procs([command], timeout=10)
    assert not command.is_running()


def _wait_for_child(pid: int, mark: str) -> psutil.Process:
    while True:
        for process in psutil.Process(pid).children(recursive=True):
            if process.ppid() != pid and mark in " ".join(process.cmdline()):
                return process


def _is_ours(process: psutil.Process) -> bool:
    try:
        return bool(process.environ())
    except psutil.Error:
        return False
