"""Equal microbatches that keep an effective batch exact, for frameworks that know one size for all of them."""

from __future__ import annotations

from brim.devices import Device
from brim.errors import InputError
from brim.findings import Finding
from brim.planning import BatchPlan
from brim.planning.batch_plan import check_shares, gives
from brim.searching import Among, Bounds, Guided
from brim.searching.among import divisors


def among_divisors(share: int, *, start: int, device: Device, most: int | None = None) -> tuple[Bounds, Among]:
    """Return how to search for the largest microbatch that divides the share of a rank, from about `start` on.

    Args:
        share: The samples of each rank.
        start: About where to begin.
        device: What it must fit into.
        most: The largest microbatch of use; None for the whole share.
    """
    sizes = tuple(size for size in divisors(share) if most is None or size <= max(1, most))
    bounds = Bounds(cap=sizes[-1], start=max(size for size in sizes if size <= max(1, start)))
    return bounds, Among(sizes=sizes, inner=Guided(limit_bytes=device.limit_bytes, noise=device.noise))


def even_share(effective: int, *, ranks: int) -> int:
    """Return the samples of each rank; refuse what they cannot share alike, because frameworks know one size for all.

    >>> even_share(512, ranks=2)
    256
    """
    check_shares(effective, ranks=ranks)
    share, left_over = divmod(effective, ranks)
    if left_over:
        below = effective - left_over
        raise InputError(
            f"Effective batch {effective:,} does not divide over {ranks:,} ranks, which all have the same batch here. "
            f"Use {below:,} or {below + ranks:,}."
        )
    return share


def split_evenly(effective: int, finding: Finding, *, ranks: int) -> BatchPlan:
    """Return the plan for a microbatch that divides the share of a rank."""
    assert finding.microbatch is not None
    return gives(finding.microbatch, accumulation=even_share(effective, ranks=ranks) // finding.microbatch, ranks=ranks)


def arithmetic(plan: BatchPlan) -> str:
    """Return how the effective batch comes about.

    >>> arithmetic(gives(16, accumulation=4, ranks=2))
    'microbatch 16 × accumulation 4 × ranks 2 = 128'
    """
    ranks = f" × ranks {plan.ranks:,}" if plan.ranks > 1 else ""
    return f"microbatch {plan.microbatch:,} × accumulation {plan.accumulation:,}{ranks} = {plan.effective:,}"
