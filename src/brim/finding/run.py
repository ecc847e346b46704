"""The search over all cases: what stays the same over them, and the history."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable
from typing import Any

from brim.cases import Case
from brim.devices import Device
from brim.errors import BrimError
from brim.finding.case_search import CaseSearch
from brim.finding.mixing import run_mix
from brim.finding.observer import Observer
from brim.finding.subject import Subject
from brim.findings import Finding, Findings, goal_of
from brim.history import History, make_key
from brim.probing import Prober
from brim.searching import Bounds, Strategy

NOT_ISOLATED = "ran in this process only: isolate=True runs the answer once more in a fresh one"


class Run:
    """What stays the same over all cases of one call."""

    def __init__(
        self,
        *,
        subject: Subject,
        device: Device,
        bounds: Bounds,
        steps: int,
        is_timed: bool,
        strategy_name: str,
        refine: bool,
        make_strategy: Callable[[Case], Strategy | None],
        observer: Observer,
        ranks: int,
        nodes: int,
        isolate: bool,
        cache: bool,
    ) -> None:
        self._subject = subject
        self._device = device
        self._bounds = bounds
        self._steps = steps
        self._is_timed = is_timed
        self._strategy_name = strategy_name
        self._refine = refine
        self._make_strategy = make_strategy
        self._ranks = ranks
        self._nodes = nodes
        self._isolate = isolate
        self._history = History(warn=observer.warn) if cache else None
        self._told: set[str] = set()
        self.observer = observer

    def search_all(self, prober: Prober, cases: list[Case]) -> Findings:
        """Return a finding for each case; an error carries those that were made before it."""
        found: list[Finding] = []
        kind = "train"
        try:
            kind = prober.kind
            for case in cases:
                self.observer.case_started(case)
                finding = self._search_case(prober, case, self._key(kind, case))
                found.append(finding)
                self.observer.found(finding)
        except (BrimError, KeyboardInterrupt) as error:
            _carry(error, self._findings(kind, prober.ranks, found))
            raise
        return self._findings(prober.kind, prober.ranks, found)

    def run_mix(self, prober: Prober, findings: Findings) -> Findings:
        """Return the findings of several lengths after their batches have run in turn."""
        try:
            return run_mix(findings, lambda case: self._case_search(prober, case), self.observer)
        except (BrimError, KeyboardInterrupt) as error:
            _carry(error, findings)
            raise

    def _search_case(self, prober: Prober, case: Case, key: str) -> Finding:
        remembered = self._history.recall(key) if self._history else None
        if remembered is not None:
            self.observer.note("found before: confirming")
            finding = self._case_search(prober, case).confirm(remembered)
            if finding is not None:
                return finding
            self.observer.note("what was found before no longer holds: searching anew")
        search = self._case_search(prober, case)
        finding = search.run()
        if self._history is not None and finding.stopped_by != "time":
            self._history.remember(
                key,
                finding,
                workload=self._subject.label,
                device=self._device.name,
                limit_bytes=self._device.limit_bytes,
                sources=search.sources,
                goal=goal_of(self._strategy_name),
            )
        return finding

    def _case_search(self, prober: Prober, case: Case) -> CaseSearch:
        return CaseSearch(
            prober=prober,
            case=case,
            bounds=self._bounds,
            steps=self._steps,
            is_timed=self._is_timed,
            device=self._device,
            make_strategy=self._make_strategy,
            observer=self.observer,
            fresh=self._isolate,
            note=None if self._isolate else NOT_ISOLATED,
            told=self._told,
        )

    def _key(self, kind: str, case: Case) -> str:
        """Everything that could change the answer, but for the sources, which the row itself holds."""
        bounds = self._bounds
        settings: dict[str, Any] = {
            "workload": self._subject.identity,
            "isolate": self._isolate,
            "case": dict(case),
            "kind": kind,
            "steps": self._steps,
            "device": self._device.name,
            "device_model": self._device.model,
            "limit_bytes": self._device.limit_bytes,
            "strategy": self._strategy_name,
            "refine": self._refine,
            "bounds": [bounds.cap, bounds.start, bounds.multiple_of, bounds.tries],
            "ranks": self._ranks,
            "nodes": self._nodes,
            "torch": importlib.metadata.version("torch"),
            "python": platform.python_version(),
        }
        return make_key(settings)

    def _findings(self, kind: str, ranks: int, found: list[Finding]) -> Findings:
        return Findings(
            workload=self._subject.label,
            kind=kind,
            device_name=self._device.name,
            memory_bytes=self._device.memory_bytes,
            fill=self._device.fill,
            strategy=self._strategy_name,
            findings=tuple(found),
            ranks=ranks,
        )


def _carry(error: BaseException, findings: Findings) -> None:
    """Let an error carry what was found before it; a KeyboardInterrupt too, whose type knows of no such attribute."""
    vars(error)["findings"] = findings
