from dataclasses import replace
from datetime import datetime, timezone

import pytest

from brim.planning import BatchPlan
from brim.planning.expectation import Expectation
from brim.project import KeptPlan
from brim.watching.checklist import Mark, has_passed, judge, why_not_judged
from brim.watching.job import Observed
from brim.watching.told import ProcessTold, Told

GIB = 2**30
EXPECTED = Expectation(memory_bytes=24 * GIB, peak_low_bytes=18 * GIB, peak_high_bytes=22 * GIB)
PLAN = KeptPlan(
    number=3,
    made=datetime(2026, 11, 16, tzinfo=timezone.utc),
    plan=BatchPlan(effective=64),
    expected=EXPECTED,
    step_seconds=0.2,
)
RANK = ProcessTold(
    pid=7, num_steps=100, step_seconds=0.21, host_peak_bytes=3 * GIB, allocator_retries=0, ooms=0,
    reserved_bytes=20 * GIB,
)  # fmt: skip
GOOD = Observed(
    exit_code=0,
    seconds=60.0,
    host_peak_bytes=3 * GIB,
    gpu_peak_bytes=20 * GIB,
    oom_lines=(),
    was_oom_killed=False,
    told=Told(processes=(RANK,)),
)


def told(**changes):
    return Told(processes=(replace(RANK, **changes),))


def marks(seen, plan=PLAN):
    return {check.name: check.mark for check in judge(seen, plan)}


def test_a_run_as_planned_passes_everywhere():
    assert set(marks(GOOD).values()) == {Mark.PASS}
    assert has_passed(judge(GOOD, PLAN))


@pytest.mark.parametrize(
    ("change", "failed"),
    [
        ({"exit_code": 1}, {"ran to its end"}),
        ({"exit_code": -9, "was_oom_killed": True}, {"ran to its end", "no out-of-memory"}),
        ({"oom_lines": ("CUDA out of memory",)}, {"no out-of-memory"}),
        ({"told": told(oom_errors=("MemoryError: no message",))}, {"no out-of-memory"}),
        ({"told": told(ooms=2)}, {"no out-of-memory"}),
        ({"told": told(allocator_retries=1)}, {"no allocator retries"}),
        ({"told": told(step_seconds=0.3)}, {"step time"}),
        ({"gpu_peak_bytes": 10 * GIB}, {"fills what was planned", "peak within its range"}),
        ({"gpu_peak_bytes": 23 * GIB}, {"peak within its range"}),
    ],
)
def test_each_thing_that_goes_wrong_fails_its_own_line(change, failed):
    found = marks(replace(GOOD, **change))
    assert {name for name, mark in found.items() if mark is Mark.FAIL} == failed


def test_what_was_not_seen_is_no_pass():
    blind = replace(GOOD, told=Told(), gpu_peak_bytes=None, host_peak_bytes=None)
    found = marks(blind)
    unseen = {name for name, mark in found.items() if mark is Mark.NOT_SEEN}
    assert unseen == {"no allocator retries", "fills what was planned", "peak within its range", "step time"}
    assert marks(GOOD, None)["peak within its range"] is Mark.NOT_SEEN
    assert marks(GOOD, replace(PLAN, expected=None))["fills what was planned"] is Mark.NOT_SEEN


def test_the_hosts_memory_is_not_held_against_a_plan_for_a_gpu():
    for_gpu = replace(PLAN, expected=replace(EXPECTED, gpu="rtx-3090"))
    check = judge(replace(GOOD, gpu_peak_bytes=None), for_gpu)[3]
    assert check.mark is Mark.NOT_SEEN
    assert "plan 3 is for rtx-3090" in check.text


def not_judged(seen):
    return why_not_judged(judge(seen, PLAN), seen)


def test_a_job_that_fails_for_a_reason_of_its_own_says_nothing_about_the_plan():
    assert not_judged(GOOD) is None
    assert not_judged(replace(GOOD, exit_code=1)) == "the job failed for a reason of its own"
    assert not_judged(replace(GOOD, exit_code=1, oom_lines=("CUDA out of memory",))) is None


def test_a_job_of_which_nothing_was_seen_or_on_other_ranks_says_nothing_about_the_plan():
    blind = replace(GOOD, told=Told(), gpu_peak_bytes=None, host_peak_bytes=None)
    assert not_judged(blind).startswith("no step of the job was seen")
    two = replace(GOOD, told=Told(processes=(RANK, replace(RANK, pid=8, rank=1))))
    assert marks(two)["as many ranks as planned"] is Mark.FAIL
    assert not_judged(two) == "the job ran on another number of ranks than it plans for"


def test_a_job_without_a_step_neither_passes_nor_fails_its_plan_unless_memory_ran_out():
    idle = replace(GOOD, told=Told(), gpu_peak_bytes=None, host_peak_bytes=GIB // 100)
    assert {name for name, mark in marks(idle).items() if mark is Mark.FAIL} == set()
    assert has_passed(judge(idle, PLAN))
    assert not_judged(idle).startswith("no step of the job was seen")
    crashed = replace(idle, exit_code=1)
    assert {name for name, mark in marks(crashed).items() if mark is Mark.FAIL} == {"ran to its end"}
    assert not_judged(crashed) == "the job failed for a reason of its own"
    assert not_judged(replace(crashed, oom_lines=("CUDA out of memory",))) is None


def test_a_job_on_the_cpu_that_made_steps_had_no_retries_and_its_largest_rank_is_judged():
    on_cpu = [replace(RANK, rank=rank, allocator_retries=None, ooms=None, reserved_bytes=None) for rank in range(2)]
    on_cpu[1] = replace(on_cpu[1], host_peak_bytes=20 * GIB)
    seen = replace(GOOD, gpu_peak_bytes=None, host_peak_bytes=23 * GIB, told=Told(processes=tuple(on_cpu)))
    plan = replace(PLAN, plan=BatchPlan(effective=64, ranks=2))
    assert set(marks(seen, plan).values()) == {Mark.PASS}
    assert "20.0 GiB on the host, in the largest of 2 ranks" in judge(seen, plan)[4].text


def test_why_no_step_was_seen_is_said():
    blind = replace(GOOD, told=Told(hook_failure="ModuleNotFoundError: No module named 'brim'"))
    assert "needs brim in its own Python: ModuleNotFoundError" in judge(blind, PLAN)[-1].text
    assert "call brim.log_step()" in judge(replace(GOOD, told=Told()), PLAN)[-1].text
    assert "one step has no time" in judge(replace(GOOD, told=told(num_steps=1, step_seconds=None)), PLAN)[-1].text
