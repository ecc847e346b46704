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
from brim.errors import InputError, WorkloadError
from brim.probing.scripts import Command, CommandProber

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parents[2] / "scripts"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def find(*words, **settings):
    settings = {"device": "cpu", "memory": "1GiB", "cache": False, "steps": 2, "start": 4, "cap": 4, **settings}
    return brim.find([sys.executable, *map(str, words)], **settings)


def find_odd(behaviour, **settings):
    return find(SCRIPTS / "odd.py", behaviour, "{batch}", **settings)


def make_prober(script, *words, launcher=(sys.executable,), timeout_seconds=None, memory_bytes=2**30):
    device = Device(name="cpu", memory_bytes=memory_bytes, fill=1.0)
    command = Command((*launcher, str(SCRIPTS / script), *words))
    return CommandProber(command, device, (device.limit_bytes,), timeout_seconds=timeout_seconds)


@pytest.mark.parametrize(("behaviour", "forward", "samples"), [("compiles", 2, 8), ("compiles_steps", 0, 0)])
def test_steps_of_what_was_compiled_in_place_are_seen(behaviour, forward, samples):
    probe = make_prober("odd.py", behaviour, "{batch}").probe(Case(), 4, steps=2).probe
    assert (probe.verdict, probe.steps, probe.samples) == ("fits", 2, samples)
    assert probe.calls["forward"] == forward


@pytest.mark.parametrize(
    ("words", "kind", "forward", "samples"),
    [
        (["plain.py", "--batch_size={batch}", "--workers=1", "--amp", "--compile"], "train", 2, 8),
        (["trainer.py", "--per_device_train_batch_size", "{batch}"], "train", 2, 8),
        (["trainer.py", "--do_eval", "--per_device_eval_batch_size={batch}"], "eval", 2, 8),
        (["accelerated.py", "--per_device_batch_size", "{batch}"], "train", 4, 16),
        (["lightened.py", "--batch_size", "{batch}"], "train", 4, 8),  # with two batches of validation before
        (["generator.py", "--batch_size", "{batch}"], "generate", 12, 48),
        (["odd.py", "evaluates", "{batch}"], "eval", 2, 8),
        (["odd.py", "generates", "{batch}"], "generate", 10, 40),
        (["odd.py", "by_hand", "{batch}"], "train", 2, 8),
        (["odd.py", "two_optimizers", "{batch}"], "train", 4, 8),  # of each of its two models
    ],
)
@pytest.mark.long
def test_a_script_is_ended_after_two_of_what_it_repeats(words, kind, forward, samples):
    # Room for whatever a framework imports of the packages that are installed.
    prober = make_prober(*words, memory_bytes=2**32)
    probe = prober.probe(Case(), 4, steps=2).probe
    assert (probe.verdict, prober.kind, prober.ranks) == ("fits", kind, 1)
    assert (probe.steps, probe.calls["forward"], probe.samples) == (2, forward, samples)
    assert probe.step_seconds > 0


@pytest.mark.long
def test_the_largest_batch_of_a_script_is_found_under_a_real_limit():
    words = [SCRIPTS / "plain.py", "--batch_size={batch}", "--samples=16384"]
    finding = find(*words, memory="576MiB", start=2048, cap=16384)[0]
    assert finding.confirmed
    assert finding.stopped_by == "memory"
    assert finding.peak_bytes <= 0.9 * 576 * 2**20
    largest = make_prober("plain.py", "--batch_size={batch}", "--samples=16384").probe(Case(), 16384, steps=2).probe
    assert largest.verdict == "oom"
    assert "DefaultCPUAllocator" in largest.detail


def test_the_steps_of_a_script_are_timed_apart_and_all_of_them_make_its_rate():
    words = [SCRIPTS / "plain.py", "--batch_size={batch}"]
    finding = find(*words, goal="fastest", steps=4, start=8, cap=16)[0]
    assert all(len(probe.timings) == 3 for probe in finding.probes), "the first step warms up"
    assert all(rate["timings"] >= 3 and rate["spread"] is not None for rate in finding.throughput["rates"])
    assert "median step of" in finding.note


def test_every_rank_of_a_torchrun_job_counts_and_nothing_is_left(still_running):
    prober = make_prober("plain.py", "--batch_size={batch}", launcher=TORCHRUN)
    probe = prober.probe(Case(), 8, steps=2).probe
    assert (probe.verdict, prober.ranks, probe.samples) == ("fits", 2, 16)
    assert not still_running()


@pytest.mark.long
def test_ranks_that_a_script_spawns_itself_count(monkeypatch):
    prober = make_prober("spawned.py", "{batch}")
    assert (prober.probe(Case(), 4, steps=2).probe.verdict, prober.ranks) == ("fits", 2)
    monkeypatch.setenv("FAIL_ON_ONE", "1")
    failed = prober.probe(Case(), 4, steps=2).probe
    assert failed.verdict == "oom", "outside of any module, and caught by the process that spawned it"


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
@pytest.mark.long
def test_what_happens_on_one_rank_decides_for_all(fault, batch, verdict, detail):
    prober = make_prober("faulty_ranks.py", fault, "{batch}", launcher=TORCHRUN, timeout_seconds=30)
    probe = prober.probe(Case(), batch, steps=3).probe
    assert probe.verdict == verdict
    assert re.match(detail, probe.detail)


@pytest.mark.parametrize(
    ("behaviour", "verdict", "num_steps"),
    [
        ("short", "fits", 1),
        ("speaks_of_memory", "fits", 2),
        ("survives", "oom", 0),  # with less than it was asked for
        ("dies", "unclear", 0),
    ],
)
@pytest.mark.long
def test_scripts_that_end_otherwise_have_their_verdict(behaviour, verdict, num_steps):
    probe = make_prober("odd.py", behaviour, "{batch}").probe(Case(), 4, steps=2).probe
    assert (probe.verdict, probe.steps) == (verdict, num_steps)


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ("fails", "step failed at microbatch 4: RuntimeError: mat1 and mat2 shapes"),
        ("exits", "exit code 1 before its first step: no data in this folder"),
        ("leaves", "the command ended while 1 of its processes still ran"),
        ("unknown", "exit code 1 before its first step: there is no behaviour unknown"),
    ],
)
def test_a_failure_is_raised_with_its_reason_and_a_log(behaviour, message, still_running):
    with pytest.raises(WorkloadError, match=message) as caught:
        find_odd(behaviour)
    log = Path(str(caught.value).rpartition("All that it printed: ")[2])
    assert log.is_file()
    assert not still_running()


@pytest.mark.long
def test_data_that_ends_before_the_batch_is_no_answer():
    with pytest.raises(WorkloadError, match=r"saw no more at microbatch 8 than at 4: 3 samples at once.*--cap 3"):
        find_odd("small_data", cap=64, strategy=brim.searching.Doubling(), start=4)


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


@pytest.mark.long
def test_a_folder_that_the_script_would_overwrite_is_named(caplog, tmp_path):
    (tmp_path / "weights.bin").write_text("precious")
    find(SCRIPTS / "odd.py", "short", "{batch}", "--output_dir", tmp_path)
    assert f"it may overwrite what is in {tmp_path}" in caplog.text


@pytest.mark.long
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
    assert make_prober("odd.py", "short", "{batch}").probe(Case(), 4, steps=1).probe.verdict == "fits"
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
