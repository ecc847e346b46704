"""`brim.find`: the largest microbatch for every case."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from brim.cases import Case, CaseValue, as_cases
from brim.devices import Device, resolve
from brim.errors import BrimError, InputError
from brim.finding.case_search import CaseSearch
from brim.finding.observer import LogObserver, Observer
from brim.findings import Finding, Findings
from brim.history import History, make_key
from brim.probing import PairedProber, Prober
from brim.probing.groups import PROBING_VARIABLE
from brim.searching import Bounds, Doubling, Estimate, Fastest, ScaleTable, Strategy
from brim.searching.bounds import LARGEST_MICROBATCH
from brim.searching.estimate import MAX_TRIES
from brim.units import parse_seconds
from brim.workload import Workload, address_of, check_address, check_class, load

STRATEGIES = ("guided", "estimate", "doubling")
GOALS = ("largest", "fastest")
DEFAULT_STEPS = 3
# Steps of a probe that is to tell rates of a few percent apart.
FASTEST_STEPS = 9


def find(
    workload: str | type[Workload],
    *,
    cases: Iterable[Mapping[str, CaseValue]] | None = None,
    device: str = "auto",
    memory: str | int | None = None,
    fill: float = 0.9,
    cap: int | None = None,
    start: int | None = None,
    multiple_of: int = 1,
    strategy: str | Strategy = "guided",
    goal: str = "largest",
    steps: int | None = None,
    ranks: int = 1,
    timeout: float | str | None = None,
    cache: bool = True,
    isolate: bool = True,
    tries: int | None = None,
    time_limit: float | str | None = None,
    scale_table: ScaleTable | None = None,
    observer: Observer | None = None,
) -> Findings:
    """Find the largest microbatch that fits, for every case; each answer has been run and has fitted.

    Args:
        workload: A `Workload` subclass, or its address `"file.py:Name"` or `"package.module:Name"`.
        cases: Settings of the input shape, each answered on its own; None for one case without settings.
        device: `auto`, `cpu` or `cuda:N`.
        memory: What the job may have in all, e.g. `"8GiB"`; None for what is free on the device now.
        fill: The share of `memory` that the peak may use.
        cap: The largest microbatch to try.
        start: The first microbatch to try.
        multiple_of: Try only multiples of this.
        strategy: `guided`, `estimate`, `doubling`, or an object with a `propose` method.
        goal: `largest`, or `fastest` for the smallest microbatch within 5% of the best rate, in at most six probes.
        steps: How many whole steps each probe runs; None for 3, or 9 for the goal `fastest`.
        ranks: Data-parallel processes; only 1 is supported.
        timeout: Seconds a probe may go without reaching its next step before it is ended; None for ten minutes.
        cache: Whether to use and extend the history of findings. A hit costs one confirming probe.
        isolate: Whether to probe in child processes. False probes here and puts everything back as it was.
        tries: How many sizes may be tried for a case, the confirmation aside.
        time_limit: Seconds that the search of one case may take; its answer still runs once more after that.
        scale_table: Where the strategy `estimate` starts.
        observer: Told of every step; None for log lines of the logger `brim`.

    Returns:
        A finding for each case, in the order of the cases.

    Raises:
        InputError: A value cannot be used.
        WorkloadError: The workload failed for another reason than memory. `error.findings` holds what was found.
        UnclearError: A probe died or hung three times for no known reason.
    """
    if PROBING_VARIABLE in os.environ:
        raise InputError(
            "brim.find was called again while brim was loading the workload's file. "
            'Put the call under `if __name__ == "__main__":`.'
        )
    listed = as_cases(cases)
    if ranks != 1:
        raise InputError(f"ranks is {ranks!r}, but only 1 rank can be probed. Leave it out.")
    if goal not in GOALS:
        raise InputError(f"There is no goal {goal!r}. Use one of: {', '.join(GOALS)}.")
    if goal == "fastest" and strategy != "guided":
        raise InputError("The goal `fastest` has a strategy of its own. Leave out the strategy.")
    if steps is None:
        steps = FASTEST_STEPS if goal == "fastest" else DEFAULT_STEPS
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise InputError(f"steps is {steps!r}. Use a whole number of at least 1.")
    if tries is None and strategy == "estimate":
        tries = MAX_TRIES
    bounds = Bounds(
        cap=LARGEST_MICROBATCH if cap is None else cap,
        start=start,
        multiple_of=multiple_of,
        tries=tries,
        seconds=None if time_limit is None else parse_seconds(time_limit),
    )
    make_strategy = _strategy_maker(strategy, bounds, scale_table or ScaleTable(), listed)
    timeout_seconds = None if timeout is None else parse_seconds(timeout)
    if not isolate and timeout is not None:
        raise InputError("A probe in this process cannot be ended: leave out timeout, or use isolate=True.")
    if isinstance(workload, str):
        check_address(workload)
    found_device = resolve(device, memory=memory, fill=fill)
    strategy_name = strategy if isinstance(strategy, str) else strategy.name
    if goal == "fastest":
        fastest = Fastest(limit_bytes=found_device.limit_bytes)
        strategy_name, make_strategy = fastest.name, lambda case: fastest
    run = _Run(
        label=workload if isinstance(workload, str) else _label(workload),
        device=found_device,
        bounds=bounds,
        steps=steps,
        strategy_name=strategy_name,
        make_strategy=make_strategy,
        observer=observer or LogObserver(),
        isolate=isolate,
        # A strategy object or a table of the user's own cannot be compared with another run's.
        cache=cache and isinstance(strategy, str) and scale_table is None,
    )
    address = address_of(workload) if isolate else ""
    run.observer.started(listed, limit_bytes=found_device.limit_bytes)
    prober = _make_prober(workload, address, found_device, timeout_seconds)
    try:
        return run.search_all(prober, listed, address)
    finally:
        prober.close()


class _Run:
    """What stays the same over all cases of one call."""

    def __init__(
        self,
        *,
        label: str,
        device: Device,
        bounds: Bounds,
        steps: int,
        strategy_name: str,
        make_strategy: Callable[[Case], Strategy | None],
        observer: Observer,
        isolate: bool,
        cache: bool,
    ) -> None:
        self._label = label
        self._device = device
        self._bounds = bounds
        self._steps = steps
        self._strategy_name = strategy_name
        self._make_strategy = make_strategy
        self._isolate = isolate
        self._history = History(warn=observer.warn) if cache else None
        self.observer = observer

    def search_all(self, prober: Prober, cases: list[Case], address: str) -> Findings:
        found: list[Finding] = []
        kind = "train"
        try:
            kind = prober.kind
            for case in cases:
                self.observer.case_started(case)
                finding = self._search_case(prober, case, self._key(kind, case, address))
                found.append(finding)
                self.observer.found(finding)
        except (BrimError, KeyboardInterrupt) as error:
            setattr(error, "findings", self._findings(kind, found))  # noqa: B010  Ctrl-C has no such attribute
            raise
        return self._findings(kind, found)

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
            self._history.remember(key, finding, workload=self._label, device=self._device.name, sources=search.sources)
        return finding

    def _case_search(self, prober: Prober, case: Case) -> CaseSearch:
        return CaseSearch(
            prober=prober,
            case=case,
            bounds=self._bounds,
            steps=self._steps,
            device=self._device,
            make_strategy=self._make_strategy,
            observer=self.observer,
            fresh=self._isolate,
        )

    def _key(self, kind: str, case: Case, address: str) -> str:
        """Everything that could change the answer, but for the sources, which the row itself holds."""
        bounds = self._bounds
        settings: dict[str, Any] = {
            "workload": address or self._label,
            "isolate": self._isolate,
            "case": dict(case),
            "kind": kind,
            "steps": self._steps,
            "device": self._device.name,
            "device_model": self._device.model,
            "limit_bytes": self._device.limit_bytes,
            "strategy": self._strategy_name,
            "bounds": [bounds.cap, bounds.start, bounds.multiple_of, bounds.tries],
            "ranks": 1,
            "torch": importlib.metadata.version("torch"),
            "python": platform.python_version(),
        }
        return make_key(settings)

    def _findings(self, kind: str, found: list[Finding]) -> Findings:
        return Findings(
            workload=self._label,
            kind=kind,
            device_name=self._device.name,
            memory_bytes=self._device.memory_bytes,
            fill=self._device.fill,
            strategy=self._strategy_name,
            findings=tuple(found),
        )


def _strategy_maker(
    strategy: str | Strategy, bounds: Bounds, table: ScaleTable, cases: list[Case]
) -> Callable[[Case], Strategy | None]:
    """Return what makes the strategy of a case; it answers None for `guided`, which waits for the trace."""
    if not isinstance(strategy, str):
        return lambda case: strategy
    if strategy == "guided":
        return lambda case: None
    if strategy == "doubling":
        return lambda case: Doubling()
    if strategy == "estimate":
        if bounds.cap >= LARGEST_MICROBATCH and bounds.start is None:
            raise InputError("The strategy `estimate` starts from a share of the cap. Pass cap=64 (--cap 64).")
        scales = {case: table.scale(case) for case in cases}
        return lambda case: Estimate(scale=scales[case])
    raise InputError(f"There is no strategy {strategy!r}. Use one of: {', '.join(STRATEGIES)}.")


def _make_prober(workload: str | type[Workload], address: str, device: Device, timeout_seconds: float | None) -> Prober:
    if address:
        return PairedProber(address, device, timeout_seconds=timeout_seconds)
    from brim.probing.in_process import InProcessProber

    loaded = load(workload) if isinstance(workload, str) else check_class(workload, repr(workload))
    return InProcessProber(loaded, device)


def _label(workload: type[Workload]) -> str:
    try:
        target, _, name = address_of(workload).rpartition(":")
    except InputError:
        return workload.__name__
    path = Path(target)
    return f"{path.name if path.is_absolute() else target}:{name}"
