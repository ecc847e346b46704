"""Whether a job ran as planned: one line for each thing that matters, and what was not seen is not a pass."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import shorten

from brim.project.plan_book import KeptPlan
from brim.units import format_bytes, format_seconds
from brim.watching.job import Observed

# By how much a step may take longer than when the plan last ran well. A choice.
SLOWER = 1.25
_LONGEST_LINE = 120

ENDED = "ran to its end"
NO_OOM = "no out-of-memory"
MEMORY = ("fills what was planned", "peak within its range")
RANKS = "as many ranks as planned"


class Mark(str, enum.Enum):
    """How a check ended."""

    PASS = "pass"
    FAIL = "fail"
    NOT_SEEN = "not seen"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the checklist."""

    name: str
    mark: Mark
    text: str

    def to_dict(self) -> dict[str, str]:
        """Return the check as plain data."""
        return {"name": self.name, "mark": self.mark.value, "text": self.text}


def judge(seen: Observed, plan: KeptPlan | None) -> list[Check]:
    """Return the checklist of a job, held against the plan it should have run with."""
    checks = [_end(seen), _ooms(seen), _retries(seen), *_memory(seen, plan), _step_time(seen, plan)]
    num_ranks = len(seen.told.workers)
    if plan is not None and num_ranks and num_ranks != plan.plan.ranks:
        text = f"{num_ranks:,} made steps, planned {plan.plan.ranks:,}"
        checks.insert(1, Check(name=RANKS, mark=Mark.FAIL, text=text))
    return checks


def has_passed(checks: Sequence[Check]) -> bool:
    """Return whether nothing failed."""
    return all(check.mark is not Mark.FAIL for check in checks)


def why_not_judged(checks: Sequence[Check], seen: Observed) -> str | None:
    """Say why no verdict on the plan follows from a job; None where one does."""
    marks = {check.name: check.mark for check in checks}
    if marks[NO_OOM] is Mark.FAIL:
        return None
    if marks[ENDED] is Mark.FAIL:
        return "the job failed for a reason of its own"
    if RANKS in marks:
        return "the job ran on another number of ranks than it plans for"
    if not seen.told.num_steps:
        return "no step of the job was seen, so nothing of it ran that could be told"
    return None


def _end(seen: Observed) -> Check:
    took = format_seconds(seen.seconds)
    if seen.exit_code == 0:
        return Check(name=ENDED, mark=Mark.PASS, text=f"exit code 0 after {took}")
    how = f"exit code {seen.exit_code}" if seen.exit_code > 0 else f"ended by signal {-seen.exit_code}"
    return Check(name=ENDED, mark=Mark.FAIL, text=f"{how} after {took}")


def _ooms(seen: Observed) -> Check:
    if seen.was_oom_killed:
        return Check(name=NO_OOM, mark=Mark.FAIL, text="killed while the kernel killed for lack of memory")
    if seen.told.ooms:
        return Check(name=NO_OOM, mark=Mark.FAIL, text=f"{seen.told.ooms:,} counted by torch's allocator")
    lines = seen.oom_lines or seen.told.oom_errors
    if lines:
        return Check(name=NO_OOM, mark=Mark.FAIL, text=shorten(lines[-1], _LONGEST_LINE, placeholder=" …"))
    where = "none in its output" if seen.told.ooms is None else "none counted by torch's allocator"
    return Check(name=NO_OOM, mark=Mark.PASS, text=where)


def _retries(seen: Observed) -> Check:
    name, retries = "no allocator retries", seen.told.allocator_retries
    if retries is None and seen.told.num_steps:
        return Check(name=name, mark=Mark.PASS, text="no CUDA memory was used, whose allocator alone retries")
    if retries is None:
        return Check(name=name, mark=Mark.NOT_SEEN, text=_why_no_steps(seen))
    if retries:
        text = f"{retries:,}: memory was full, and steps waited while the allocator gave cached memory back"
        return Check(name=name, mark=Mark.FAIL, text=text)
    return Check(name=name, mark=Mark.PASS, text="none counted by torch's allocator")


def _memory(seen: Observed, plan: KeptPlan | None) -> list[Check]:
    peak_bytes, where = _peak(seen)
    why = _not_comparable(seen, plan)
    if why is not None:
        reached = "" if peak_bytes is None else f"{format_bytes(peak_bytes)} {where}; "
        return [Check(name=name, mark=Mark.NOT_SEEN, text=f"{reached}{why}") for name in MEMORY]
    assert plan is not None
    assert plan.expected is not None
    expected, peak = plan.expected, peak_bytes or 0
    low, high, memory = expected.peak_low_bytes, expected.peak_high_bytes, expected.memory_bytes
    fill = f"{peak / memory:.0%} of {format_bytes(memory)}, planned at least {low / memory:.0%}"
    peaked = f"{format_bytes(peak)} {where}, planned {format_bytes(low)} to {format_bytes(high)}"
    return [
        Check(name=MEMORY[0], mark=Mark.PASS if peak >= low else Mark.FAIL, text=fill),
        Check(name=MEMORY[1], mark=Mark.PASS if low <= peak <= high else Mark.FAIL, text=peaked),
    ]


def _peak(seen: Observed) -> tuple[int | None, str]:
    """Return what is held against a plan, which speaks of one rank, and where it was."""
    if seen.gpu_peak_bytes:
        return seen.gpu_peak_bytes, "on the GPU"
    ranks = seen.told.workers
    if len(ranks) > 1:
        return max(rank.host_peak_bytes or 0 for rank in ranks), f"on the host, in the largest of {len(ranks)} ranks"
    return seen.host_peak_bytes, "on the host"


def _not_comparable(seen: Observed, plan: KeptPlan | None) -> str | None:
    """Say why a job's memory cannot be held against its plan; None where it can."""
    if plan is None:
        return "no plan is active here: brim plan … --save keeps one"
    if plan.expected is None:
        return f"plan {plan.number} says no peak: plan with --measured, --model or --workload for one"
    if not seen.told.num_steps:
        return "no step was seen, and it is the memory of steps that was planned"
    if plan.expected.gpu is not None and seen.gpu_peak_bytes is None:
        return f"plan {plan.number} is for {plan.expected.gpu}, and no memory of a GPU was seen"
    if seen.gpu_peak_bytes is None and seen.host_peak_bytes is None:
        return "the job ended before its memory was seen"
    return None


def _step_time(seen: Observed, plan: KeptPlan | None) -> Check:
    name, seconds = "step time", seen.told.step_seconds
    if seconds is None:
        only_one = "one step has no time from the step before it"
        return Check(name=name, mark=Mark.NOT_SEEN, text=only_one if seen.told.num_steps else _why_no_steps(seen))
    text = f"{format_seconds(seconds)} over {seen.told.num_steps:,} steps"
    usual = plan.step_seconds if plan is not None else None
    if usual is None:
        return Check(name=name, mark=Mark.NOT_SEEN, text=f"{text}; no earlier run to hold it against")
    mark = Mark.FAIL if seconds > SLOWER * usual else Mark.PASS
    return Check(name=name, mark=mark, text=f"{text}; {format_seconds(usual)} when it last ran well")


def _why_no_steps(seen: Observed) -> str:
    """Say why no step of the job was seen."""
    if seen.told.hook_failure is not None:
        return f"brim could not look into the job, which needs brim in its own Python: {seen.told.hook_failure}"
    return "no optimizer of torch made a step: call brim.log_step() after each step of another kind"
