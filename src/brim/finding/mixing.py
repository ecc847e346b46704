"""The answers of all buckets in one run, as an epoch has them: what fits alone may not fit after the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from brim.cases import Case
from brim.errors import UnclearError
from brim.finding.case_search import CaseSearch
from brim.finding.observer import Observer
from brim.findings import Finding, Findings, Probe, Verdict
from brim.planning.buckets import mix_order
from brim.searching import Ask

# By how much all microbatches shrink when their mix does not fit; the allocator wastes a few percent over shapes.
_SHRINK = 0.95
_MOST_TRIES = 8


def run_mix(findings: Findings, make_search: Callable[[Case], CaseSearch], observer: Observer) -> Findings:
    """Run the longest, the shortest and a shuffled mix of the buckets, with smaller batches until they fit together."""
    found = [finding for finding in findings if finding.microbatch is not None]
    if len(found) < 2:
        return findings
    ((name, _),) = found[0].case.items()
    sizes = {int(finding.case[name]): finding.microbatch or 1 for finding in found}
    longest = max(sizes)
    search = make_search(Case({name: longest}))
    search.steps = 1
    order = mix_order(sorted(sizes))
    observer.note(f"running batches of {len(sizes)} lengths in turn, in one process")
    for _ in range(_MOST_TRIES):
        mix = [({name: edge}, sizes[edge]) for edge in order]
        probe = search.probe(Ask(sizes[longest], confirms=True), mix=mix)
        observer.probe_ended(search.case, probe, None)
        if probe.verdict is Verdict.FITS:
            return replace(
                findings, findings=tuple(_with_mix(finding, sizes, name, probe, order) for finding in findings)
            )
        if all(size == 1 for size in sizes.values()):
            break
        sizes = {edge: max(1, min(size - 1, int(size * _SHRINK))) for edge, size in sizes.items()}
        observer.note(f"what fits alone does not fit in turn: trying {100 * (1 - _SHRINK):.0f}% less of each length")
    raise UnclearError(
        f"The lengths fit alone and not in turn, not even with {sizes[longest]} samples of {longest}. "
        "Leave more room: a smaller fill (--fill).",
        microbatch=sizes[longest],
    )


def _with_mix(finding: Finding, sizes: dict[int, int], name: str, probe: Probe, order: Sequence[int]) -> Finding:
    """Return a finding with what was run of its length in the mix as its last probe."""
    if finding.microbatch is None:
        return finding
    edge = int(finding.case[name])
    size, num_steps, alone = sizes[edge], order.count(edge), finding.best_probe
    ran = Probe(
        microbatch=size,
        verdict=Verdict.FITS,
        peak_bytes=probe.peak_bytes,
        step_seconds=None if alone is None else alone.step_seconds,
        steps=num_steps,
        samples=num_steps * size,
        detail="in turn with the other lengths",
    )
    note = finding.note if size == finding.microbatch else f"{finding.microbatch} fits alone, but not after others"
    return replace(finding, microbatch=size, probes=(*finding.probes, ran), note=note)
