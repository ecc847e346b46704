"""`brim.active_plan`: the plan that a script is to train with."""

from __future__ import annotations

import os
from pathlib import Path

from brim.errors import InputError
from brim.planning.batch_plan import BatchPlan
from brim.project.plan_file import FILE_NAME, find_file, read_book
from brim.units import format_count


def active_plan(path: str | Path | None = None) -> BatchPlan:
    """Return the plan in use, from `brim.toml` in this folder or above.

    Args:
        path: Another file, or the folder to look in.

    Raises:
        InputError: There is no plan; or it is for another number of ranks than this job has, as WORLD_SIZE says, which
            would silently change the effective batch.
        PlanFileError: The file makes no sense.
    """
    given = Path(path) if path is not None else Path.cwd()
    found = given if given.is_file() else find_file(given)
    active = read_book(found).active if found is not None else None
    if active is None:
        where = f"{found} has no plan" if found else f"There is no {FILE_NAME} in {given} or above"
        raise InputError(f"{where}. Keep one first: brim plan --effective 256 --largest 12 --save")
    num_ranks = os.environ.get("WORLD_SIZE", "")
    if num_ranks.isdecimal() and int(num_ranks) != active.plan.ranks:
        raise InputError(
            f"Plan {active.number} of {found} is for {format_count(active.plan.ranks, 'rank')}, and this job has "
            f"{int(num_ranks):,}: its effective batch would not be {active.plan.effective:,}. "
            f"Plan again: brim plan --effective {active.plan.effective} --ranks {num_ranks} … --save"
        )
    return active.plan
