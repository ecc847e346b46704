"""Probes on two real ranks: torchrun's launcher, gloo, a kernel limit on each rank."""

import psutil
import pytest
from tests.conftest import WORKLOADS

import brim
from brim.errors import InputError, UnclearError, WorkloadError

pytestmark = pytest.mark.slow

RANKED = f"{WORKLOADS}/ranked.py"
MEMORY = "640MiB"


def find(name, **settings):
    ports_before = listening()
    try:
        settings = {"device": "cpu", "memory": MEMORY, "cache": False, "ranks": 2, "steps": 2, **settings}
        return brim.find(f"{RANKED}:{name}", **settings)
    finally:
        assert listening() <= ports_before, "a port was left open"


def listening() -> set[int]:
    here = {psutil.Process().pid, *(child.pid for child in psutil.Process().children(recursive=True))}
    return {c.laddr.port for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.pid in here}


def test_the_largest_microbatch_fits_on_every_rank():
    findings = find("Train")
    finding = findings[0]
    assert findings.ranks == findings.to_dict()["ranks"] == 2
    assert finding.confirmed
    assert finding.peak_bytes <= 0.9 * 640 * 2**20
    assert all(p.samples == 2 * p.microbatch and p.calls["optimizer"] == 2 for p in finding.probes if p.steps)
    less = find("LessOnOne", start=finding.microbatch, tries=1)[0]
    assert less.probes[0].verdict == "oom", "rank 1 has 128 MiB less"
    assert less.probes[0].detail.startswith("rank 1: ")


@pytest.mark.long
def test_sizes_take_turns_on_all_ranks_together():
    finding = find("Train", goal="fastest", cap=16)[0]
    assert finding.confirmed
    raced = [probe.laps for probe in finding.probes if probe.laps]  # one that did not fit, or confirms, has none
    assert max(map(len, raced)) > 1
    assert all(len(laps) == 2 for sizes in raced for laps in sizes.values())
    assert not finding.probes[-1].laps
    assert finding.microbatch in {rate["microbatch"] for rate in finding.throughput["rates"]}


@pytest.mark.long
def test_sharded_parameters_are_what_the_optimizer_updates():
    finding = find("Sharded", memory="3GiB", cap=2, start=2)[0]
    assert [probe.calls["optimizer"] for probe in finding.probes] == [2, 2]


@pytest.mark.long
def test_ranks_start_afresh_where_nothing_may_be_forked():
    address = f"{WORKLOADS}/ranked_threads.py:Train"
    finding = brim.find(address, device="cpu", memory="1GiB", cache=False, ranks=2, start=2, cap=2, steps=1)[0]
    assert (finding.microbatch, finding.confirmed) == (2, True)


@pytest.mark.parametrize(("name", "rank"), [("ForwardFails", 1), ("BackwardFails", 0)])
@pytest.mark.long
def test_an_oom_on_one_rank_is_an_oom_of_all(name, rank):
    finding = find(name, start=4, cap=4)[0]
    assert finding.probes[0].verdict == "oom"
    assert finding.probes[0].detail.startswith(f"rank {rank}: ")
    assert finding.microbatch == 3


@pytest.mark.parametrize(
    ("name", "how"),
    [("Killed", r"of rank 1 was ended by SIGKILL"), ("Hangs", r"made no progress for 8 s .*\(rank 1 was behind\)")],
)
@pytest.mark.long
def test_a_rank_that_dies_or_hangs_is_unclear_and_never_a_hang(name, how):
    with pytest.raises(UnclearError, match=how):
        find(name, start=1, cap=1, timeout=8)


@pytest.mark.long
def test_an_error_on_one_rank_is_raised_with_its_traceback():
    with pytest.raises(WorkloadError, match="rank 1: ZeroDivisionError: only here") as caught:
        find("Raises", cap=1)
    assert "ranked.py" in caught.value.traceback


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ranks": 0}, "ranks is 0. Use a whole number"),
        ({"ranks": 2.0}, "ranks is 2.0"),
        ({"isolate": False}, "2 ranks are 2 processes"),
    ],
)
def test_bad_ranks_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        find("Train", **settings)


def test_a_command_starts_its_ranks_itself():
    with pytest.raises(InputError, match="torchrun --nproc-per-node=2"):
        brim.find(["python", "-c", "{batch}"], ranks=2)
