"""The search inside a running job: in this process, and the same on every rank."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch.distributed as dist

from brim.cases import Case
from brim.devices import Device, make_meter
from brim.errors import DeviceError, WorkloadError
from brim.finding.case_search import CaseSearch
from brim.finding.observer import Observer
from brim.findings import Finding, Probe, Race, Verdict
from brim.history import History, make_key
from brim.probing.loop import LoopProber
from brim.probing.mixing import Mix
from brim.probing.outcome import Outcome, Prober, Traced
from brim.searching import Bounds, Guided, Strategy
from brim.units import format_bytes

_CASE = Case({})
# From the best verdict to the worst: ranks agree on the worst.
_ORDER = (Verdict.FITS, Verdict.OOM, Verdict.UNCLEAR, Verdict.ERROR)


class Ranks:
    """The ranks of the job, as torch.distributed knows them; one where it was not started.

    Args:
        alone: Whether this rank searches by itself, because the others have other things to do.
    """

    def __init__(self, *, alone: bool = False) -> None:
        self._alone = alone

    @property
    def count(self) -> int:
        """How many ranks there are."""
        return dist.get_world_size() if self._is_started else 1

    @property
    def rank(self) -> int:
        """The number of this rank."""
        return dist.get_rank() if self._is_started else 0

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order."""
        values = [value] * self.count
        if len(values) > 1:
            dist.all_gather_object(values, value)
        return values

    @property
    def _is_started(self) -> bool:
        return not self._alone and dist.is_available() and dist.is_initialized()


class AgreeingProber:
    """Probes on every rank at once and reports the same everywhere: the worst verdict, the largest peak."""

    def __init__(self, prober: Prober, ranks: Ranks) -> None:
        self._prober = prober
        self._ranks = ranks

    @property
    def kind(self) -> str:
        """What a step does."""
        return self._prober.kind

    @property
    def ranks(self) -> int:
        """How many ranks probe at once."""
        return self._ranks.count

    def probe(
        self,
        case: Case,
        microbatch: int,
        *,
        steps: int,
        confirms: bool = False,
        mix: Mix = (),
        race: Race | None = None,
    ) -> Outcome:
        """Probe here, hear of the others, and return what all return."""
        outcome = self._prober.probe(case, microbatch, steps=steps, confirms=confirms, mix=mix, race=race)
        return agree(outcome, self._ranks.gather(outcome), rank=self._ranks.rank)

    def trace(self, case: Case, *, cap: int, steps: int) -> Traced:
        """Trace as the prober does."""
        return self._prober.trace(case, cap=cap, steps=steps)

    def close(self) -> None:
        """Close the prober."""
        self._prober.close()


def agree(own: Outcome, outcomes: list[Outcome], *, rank: int) -> Outcome:
    """Return the outcome that all ranks take: the first of the worst, with the largest peak and the longest step."""
    worst = max(outcomes, key=lambda outcome: _ORDER.index(outcome.probe.verdict))
    if len(outcomes) == 1:
        return own
    peaks = [outcome.probe.peak_bytes for outcome in outcomes if outcome.probe.peak_bytes is not None]
    times = [outcome.probe.step_seconds for outcome in outcomes if outcome.probe.step_seconds is not None]
    detail = worst.probe.detail
    if detail is not None and own.probe.verdict is not worst.probe.verdict:
        detail = f"on rank {outcomes.index(worst)}: {detail}"
    probe = replace(
        worst.probe,
        peak_bytes=max(peaks, default=None),
        step_seconds=max(times, default=None),
        detail=detail,
    )
    return replace(worst, probe=probe, sources=own.sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSearch:
    """One search inside a job, called on all ranks alike.

    Attributes:
        prober: Runs a probe in this process.
        label: What is searched, for the history; two things that differ have different labels.
        device: What it must fit into; the smallest limit of all ranks counts.
        bounds: Which sizes may be tried.
        observer: Told of every step.
        settings: What else could change the answer.
        sources: Hashes of the files that the job is made of, by path.
        cache: Whether to use and extend the history of findings.
        strategy: Which size is tried next; None to fit measured peaks.
    """

    prober: LoopProber
    label: str
    device: Device
    bounds: Bounds
    observer: Observer
    steps: int = 3
    settings: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    cache: bool = True
    strategy: Strategy | None = None
    ranks: Ranks = field(default_factory=Ranks)

    def run(self) -> Finding:
        """Return the finding, the same on all ranks.

        Raises:
            WorkloadError: The job failed for another reason than memory; its cause is what it raised on this rank.
        """
        device = self._agreed_device()
        self._check_room(device)
        self.observer.started([_CASE], limit_bytes=device.limit_bytes)
        try:
            return self._find(device)
        except WorkloadError as error:
            if self.prober.failure is not None:
                raise error from self.prober.failure
            if error.traceback is not None:
                self.observer.warn(error.traceback)
            raise

    def _find(self, device: Device) -> Finding:
        # One rank remembers for all, so that all do the same.
        history = self._history()
        remembered = self.ranks.gather(history.recall(self._key(device)) if history else None)[0]
        if remembered is not None:
            self.observer.note("found before: confirming")
            finding = self._search(device).confirm(remembered)
            if finding is not None:
                return self._told(finding)
            self.observer.note("what was found before no longer holds: searching anew")
        finding = self._search(device).run()
        self._remember(device, finding)
        return self._told(finding)

    def correct(self, finding: Finding, *, failed: int, fitted: int) -> None:
        """Remember that the answer ran out of memory later on, and what ran in its place."""
        probes = (Probe(microbatch=failed, verdict=Verdict.OOM), Probe(microbatch=fitted, verdict=Verdict.FITS))
        corrected = replace(finding, microbatch=fitted, stopped_by="memory", probes=(*finding.probes, *probes))
        self._remember(self._agreed_device(), corrected)

    def _check_room(self, device: Device) -> None:
        """Refuse a limit that the process has passed before the first probe, as imports alone may do on the CPU."""
        held_bytes = max(self.ranks.gather(make_meter(device.name).baseline_bytes))
        if held_bytes >= device.limit_bytes:
            raise DeviceError(
                f"This process holds {format_bytes(held_bytes)} before the first probe, and the limit is "
                f"{format_bytes(device.limit_bytes)}. Raise memory or fill."
            )

    def _told(self, finding: Finding) -> Finding:
        self.observer.found(finding)
        return finding

    def _agreed_device(self) -> Device:
        smallest_bytes = min(self.ranks.gather(self.device.limit_bytes))
        return replace(self.device, memory_bytes=smallest_bytes, fill=1.0)

    def _history(self) -> History | None:
        return History(warn=self.observer.warn) if self.cache and self.ranks.rank == 0 else None

    def _remember(self, device: Device, finding: Finding) -> None:
        history = self._history()
        if history is not None:
            history.remember(
                self._key(device),
                finding,
                workload=self.label,
                device=device.name,
                limit_bytes=device.limit_bytes,
                sources=self.sources,
            )

    def _search(self, device: Device) -> CaseSearch:
        guided = Guided(limit_bytes=device.limit_bytes, noise=device.noise)
        return CaseSearch(
            prober=AgreeingProber(self.prober, self.ranks),
            case=_CASE,
            bounds=self.bounds,
            steps=self.steps,
            device=device,
            make_strategy=lambda case: self.strategy or guided,
            observer=self.observer,
            fresh=False,
        )

    def _key(self, device: Device) -> str:
        bounds = self.bounds
        return make_key(
            {
                "in_job": self.label,
                "kind": self.prober.kind,
                "device": [device.name, device.model, device.limit_bytes],
                "bounds": [bounds.cap, bounds.start, bounds.multiple_of],
                "steps": self.steps,
                "ranks": self.ranks.count,
                "settings": dict(self.settings),
                "torch": importlib.metadata.version("torch"),
            }
        )
