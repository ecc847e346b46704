"""A dataset's lengths: a batch for every bucket, and all of them in turn in one real process."""

import pytest
from tests.conftest import WORKLOADS

import brim
from brim.errors import InputError, LengthError, WorkloadError

LENGTHED = f"{WORKLOADS}/lengthed.py"
LENGTHS = [64, 60, 40, 256, 250, 130]


def find(name, **settings):
    return brim.find(f"{LENGTHED}:{name}", **{"device": "cpu", "memory": "640MiB", "cache": False, **settings})


def test_every_bucket_is_found_and_run_in_turn_with_the_others():
    findings = find("Texts", lengths=LENGTHS)
    assert [finding.case["seq_len"] for finding in findings] == [64, 256]
    short, long = findings
    assert short.microbatch > 2 * long.microbatch
    for finding in findings:
        last = finding.probes[-1]
        assert (last.microbatch, last.verdict, last.steps) == (finding.microbatch, "fits", 3)
        assert last.peak_bytes <= 0.9 * 640 * 2**20
    sampler = brim.TokenBudgetSampler(LENGTHS, largest=findings)
    assert sorted(index for batch in sampler for index in batch) == list(range(len(LENGTHS)))


@pytest.mark.long
@pytest.mark.usefixtures("heap")
def test_what_fits_alone_but_not_in_turn_is_made_smaller():
    findings = find("Keeps", lengths=LENGTHS, cap=40)
    for finding in findings:
        assert finding.microbatch < 40
        assert finding.note == "40 fits alone, but not after others"
        assert finding.best_probe is not None, "the smaller size has run and fitted"


@pytest.mark.long
def test_a_model_that_takes_one_length_only_is_an_error():
    with pytest.raises(WorkloadError, match="RuntimeError: The size of tensor a"):
        find("Fixed", lengths=LENGTHS, cap=2)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"lengths": []}, InputError, "There are no lengths"),
        ({"lengths": LENGTHS, "cases": [{"rows": 128}]}, LengthError, "has length 256, above the 128"),
        ({"lengths": LENGTHS, "cases": [{"rows": "long"}]}, InputError, "every case is one length"),
    ],
)
def test_bad_lengths_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        find("Texts", **settings)


def test_a_command_takes_no_lengths():
    with pytest.raises(InputError, match="A command draws its own samples"):
        brim.find(["python", "-c", "{batch}"], lengths=LENGTHS)


@pytest.mark.long
def test_the_command_line_prints_what_the_sampler_takes(brim_cli, tmp_path):
    (tmp_path / "lengths.txt").write_text("\n".join(map(str, LENGTHS)))
    options = ["--device", "cpu", "--memory", "1GiB", "--cap", "2", "--start", "2", "--steps", "1"]
    run = brim_cli("find", f"{LENGTHED}:Texts", *options, "--lengths", "lengths.txt")
    assert run.returncode == 0, run.stderr
    assert "brim.TokenBudgetSampler(lengths, largest={64: 2, 256: 2})" in run.stdout
    assert "running batches of 2 lengths in turn" in run.stderr
