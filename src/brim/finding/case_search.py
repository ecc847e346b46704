"""The search of one case: traces, asks, probes, tries again what is unclear, and writes the finding."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from brim.cases import Case
from brim.devices import Device
from brim.devices.meter import NO_ROOM
from brim.errors import IdleStepError, UnclearError, WorkloadError
from brim.finding.observer import Observer
from brim.findings import Finding, Probe, Race, Verdict
from brim.planning.throughput import Throughput, measure_throughput
from brim.probing import Outcome, Prober
from brim.probing.mixing import Mix
from brim.searching import (
    Ask,
    Bounds,
    Fastest,
    Guided,
    Known,
    Search,
    Strategy,
    fastest_fit,
    steps_to_time,
)
from brim.searching.bounds import LARGEST_MICROBATCH
from brim.searching.curve import curve_through
from brim.units import format_bytes

# How often a probe that ended for no known reason is tried again.
NUM_RETRIES = 2
# Which share of the limit glibc may waste before a user is told what helps.
WORTH_A_NOTE = 0.1
# Steps of a job differ where a size up to this many times the answer was out of memory, though the answer fills less
# than this share of the limit. Chosen, not measured: both are wide of what equal steps differ by.
JUST_ABOVE = 1.05
FULL_ENOUGH = 0.8
# How many times as many steps may show the largest of them.
_MORE_STEPS = 10
# What torch says where BatchNorm meets a single sample.
_BATCH_NORM_TEXT = "Expected more than 1 value per channel when training"


@dataclass(slots=True, kw_only=True)
class CaseSearch:
    """Finds the answer for one case with one prober.

    Attributes:
        steps: How many steps a probe runs, at least.
        is_timed: Whether it runs more where a few do not tell how fast a size is.
        make_strategy: Returns the strategy for a case, or None for the guided one, which needs a trace.
        fresh: Whether every probe has a process of its own, so that running the answer once more confirms it.
        note: What to say of an answer that nothing else is to be said of.
        sources: The project's files that the workload turned out to import.
        told: The names of cases that a user was warned of already.
        _untraced: Why there is no trace, until that is told: not before a probe has shown that the workload runs.
    """

    prober: Prober
    case: Case
    bounds: Bounds
    steps: int
    device: Device
    make_strategy: Callable[[Case], Strategy | None]
    observer: Observer
    is_timed: bool = False
    fresh: bool = True
    note: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    _probes: list[Probe] = field(default_factory=list)
    _gap_from: int | None = None
    _leak: str | None = None
    _untraced: str | None = None
    _is_traced: bool = False
    _started: float = field(default_factory=time.monotonic)

    def run(self) -> Finding:
        """Search for the answer."""
        strategy, predicted = self._choose_strategy()
        choose = fastest_fit if isinstance(strategy, Fastest) else None
        search = Search(strategy, self.bounds, confirm=self.fresh, choose=choose)
        ask = search.ask()
        while ask is not None:
            probe = self.probe(ask, **self._timing(strategy, search.known, ask))
            search.tell(
                ask.microbatch,
                fits=probe.verdict is Verdict.FITS,
                peak_bytes=probe.peak_bytes,
                step_seconds=probe.step_seconds,
                laps=probe.laps,
            )
            ask = search.ask(elapsed_seconds=self._elapsed())
            self.observer.probe_ended(self.case, probe, ask)
        throughput = measure_throughput(self._probes)
        return Finding(
            case=self.case,
            microbatch=search.answer,
            stopped_by=search.stopped_by,
            confirmed=search.confirmed,
            probes=tuple(self._probes),
            predicted=predicted,
            throughput=throughput.to_dict() if throughput else None,
            note=self._note(search, strategy, throughput),
            seconds=self._elapsed(),
        )

    def confirm(self, remembered: Finding) -> Finding | None:
        """Run a remembered answer once; None when it no longer holds and a search is due."""
        size = remembered.microbatch or self.bounds.smallest
        probe = self.probe(Ask(size, confirms=True))
        self.observer.probe_ended(self.case, probe, None)
        if (probe.verdict is Verdict.FITS) != (remembered.microbatch is not None):
            return None
        return Finding(
            case=self.case,
            microbatch=remembered.microbatch,
            stopped_by=remembered.stopped_by,
            confirmed=remembered.microbatch is not None,
            probes=tuple(self._probes),
            predicted=remembered.predicted,
            throughput=remembered.throughput,
            note=remembered.note,
            seconds=self._elapsed(),
        )

    def _choose_strategy(self) -> tuple[Strategy, dict[str, int] | None]:
        chosen = self.make_strategy(self.case)
        if chosen is not None:
            return chosen, None
        traced = self.prober.trace(self.case, cap=self.bounds.cap, steps=self.steps)
        self._untraced = traced.problem
        self._gap_from = traced.gap_from
        self._leak = traced.leak
        curve = curve_through(traced.points) if traced.points else None
        self._is_traced = curve is not None
        guided = Guided(
            limit_bytes=self.device.limit_bytes,
            baseline_bytes=traced.baseline_bytes,
            curve=curve,
            noise=self.device.noise,
            first_slope=traced.slope,
            expected=curve_through(traced.expected) if traced.expected else None,
        )
        largest = guided.predicted_largest(self.bounds.cap)
        if largest is None:
            return guided, None
        return guided, {"largest": largest, "peak_bytes": guided.predicted_peak(max(largest, 1)) or 0}

    def _timing(self, strategy: Strategy, known: Known, ask: Ask) -> dict[str, Any]:
        """Return how much of a size is to be run: a few steps and a race, or as many steps as tell how fast it is."""
        if not isinstance(strategy, Fastest):
            return {"steps": self.steps}
        if strategy.races and not ask.confirms:
            race = strategy.race(known, ask.microbatch)
            return {"steps": self.steps, "race": race if self.is_timed else replace(race, rounds=self.steps)}
        return {"steps": steps_to_time(known, ask.microbatch) if self.is_timed else self.steps}

    def probe(self, ask: Ask, *, steps: int | None = None, mix: Mix = (), race: Race | None = None) -> Probe:
        """Probe until the verdict is clear, or raise what the workload raised."""
        for num_unclear in range(1, NUM_RETRIES + 2):
            self.observer.probe_started(self.case, ask)
            outcome = self.prober.probe(
                self.case, ask.microbatch, steps=steps or self.steps, confirms=ask.confirms, mix=mix, race=race
            )
            self.sources = outcome.sources or self.sources
            self._probes.append(outcome.probe)
            if outcome.probe.verdict is Verdict.ERROR:
                self.observer.probe_ended(self.case, outcome.probe, None)
                raise _workload_error(self.case, outcome)
            if self._untraced is not None:
                self.observer.note(f"searching by measured probes alone: {self._untraced}")
                self._untraced = None
            if outcome.probe.verdict is Verdict.FITS and not mix:
                self._warn_of_names(outcome)
            if outcome.probe.verdict is not Verdict.UNCLEAR:
                return outcome.probe
            self.observer.probe_ended(self.case, outcome.probe, ask if num_unclear <= NUM_RETRIES else None)
        raise UnclearError(
            f"Microbatch {ask.microbatch} {self._of_case()}ended {NUM_RETRIES + 1} times for no known reason; the last "
            f"time the process {outcome.probe.detail}. This is not read as out of memory. "
            + ("Raise --timeout if it is only slow, or run" if outcome.hung else "Run")
            + " the workload by itself at this size."
            + _full_log(outcome),
            microbatch=ask.microbatch,
            log_tail=outcome.log_tail,
        )

    def _warn_of_names(self, outcome: Outcome) -> None:
        """Warn once of names that may be misspelt: the workload never asked for them."""
        unread = [name for name in outcome.unread if name not in self.told]
        self.told.update(unread)
        if unread:
            asked = f", which asks for {', '.join(outcome.missed)}" if outcome.missed else ""
            self.observer.warn(f"{', '.join(unread)} in the case changes nothing in the workload{asked}.")

    def _note(self, search: Search, strategy: Strategy, throughput: Throughput | None) -> str | None:
        if search.answer is None:
            return self._nothing_fits(strategy)
        if isinstance(strategy, Fastest):
            return throughput.describe() if throughput else "only one size could be timed"
        best = [probe for probe in self._probes if probe.microbatch == search.answer][-1]
        if self._leak is not None:
            return f"it fits {self.steps} steps, and no size fits for long. {self._leak}"
        if best.steps < self.steps:
            return f"the script ended after {best.steps} of {self.steps} steps: what later ones need was not seen"
        if best.steps and best.samples is not None and best.samples < best.steps * best.microbatch:
            return (
                f"at microbatch {best.microbatch} the model saw {best.samples} samples in {best.steps} steps: "
                "the script may split its batches, or its data may end"
            )
        if self._gap_from is not None and search.answer > self._gap_from:
            return (
                f"sizes from about {max(1, self._gap_from)} to shortly below this one need more memory: glibc keeps "
                "tensors of less than 32 MiB in a heap and wastes some of it. Drop a smaller last batch"
            )
        if differing := self._differing(search.answer, best):
            return differing
        if search.answer == self.bounds.cap == LARGEST_MICROBATCH:
            return "no larger microbatch is tried unless a cap asks for it: cap=… (--cap …)"
        return self._waste(strategy, best) or self.note

    def _differing(self, answer: int, best: Probe) -> str | None:
        """Say that steps need different amounts, where no trace told: a little more was far too much."""
        too_large = [p.microbatch for p in self._probes if p.verdict is Verdict.OOM and p.microbatch > answer]
        share = (best.peak_bytes or 0) / self.device.limit_bytes
        if self._is_traced or not too_large or share >= FULL_ENOUGH:
            return None
        if min(too_large) > max(answer + 1, JUST_ABOVE * answer):
            return None
        return (
            f"microbatch {min(too_large):,} was out of memory while {answer:,} fills {share:.0%}: steps of this job "
            f"need different amounts, as with texts of different lengths. Let probes run more of them, "
            f"steps={_MORE_STEPS * self.steps} (--steps {_MORE_STEPS * self.steps}), or the longest batch first"
        )

    def _waste(self, strategy: Strategy, best: Probe) -> str | None:
        """Return what to do where glibc's heap takes much more than the tensors in it."""
        if self.device.name != "cpu" or self.device.has_equal_processes or not isinstance(strategy, Guided):
            return None
        live_bytes = strategy.live_bytes(best.microbatch)
        if live_bytes is None or best.peak_bytes is None:
            return None
        wasted_bytes = best.peak_bytes - strategy.baseline_bytes - live_bytes
        if wasted_bytes < WORTH_A_NOTE * self.device.limit_bytes:
            return None
        return (
            f"glibc's heap holds more than {WORTH_A_NOTE:.0%} of the limit beside the tensors: with "
            "MALLOC_MMAP_THRESHOLD_=131072 in the environment, here and in your own run, more may fit"
        )

    def _nothing_fits(self, strategy: Strategy) -> str:
        tried = min(probe.microbatch for probe in self._probes)
        limit = format_bytes(self.device.limit_bytes)
        if tried > self.bounds.smallest:
            lower = "a lower cap" if self.bounds.start is None else "a lower start or cap"
            return f"no size tried fits into {limit}, the smallest was {tried}; allow more tries or time, or {lower}"
        detail = next((probe.detail for probe in self._probes if probe.microbatch == tried and probe.detail), None)
        if detail is not None and NO_ROOM in detail:
            return f"{detail}: it takes more than that"
        # A trace knows nothing of what ranks share and of their buffers.
        is_whole = self.prober.ranks == 1
        needed = strategy.predicted_peak(tried) if isinstance(strategy, Guided) and is_whole else None
        if needed is not None and needed > self.device.limit_bytes:
            return f"microbatch {tried} needs about {format_bytes(needed)} (traced), the limit is {limit}"
        return f"microbatch {tried} needs more than the limit of {limit}" + (f" ({detail})" if detail else "")

    def _of_case(self) -> str:
        return f"of case {self.case} " if self.case else ""

    def _elapsed(self) -> float:
        return time.monotonic() - self._started


def _workload_error(case: Case, outcome: Outcome) -> WorkloadError:
    where = f" for case {case}" if case else ""
    error_class = IdleStepError if outcome.idle else WorkloadError
    if outcome.phase == "start":
        message = f"The command failed at microbatch {outcome.probe.microbatch}{where}: {outcome.probe.detail}"
    else:
        message = f"{outcome.phase} failed at microbatch {outcome.probe.microbatch}{where}: {outcome.probe.detail}"
    if outcome.probe.microbatch == 1 and _BATCH_NORM_TEXT in (outcome.probe.detail or ""):
        message += "\nBatchNorm cannot train on a single sample. Start higher: start=2 (--start 2)."
    return error_class(
        message + _full_log(outcome),
        phase=outcome.phase,
        traceback=outcome.traceback,
        log_tail=outcome.log_tail,
    )


def _full_log(outcome: Outcome) -> str:
    return "" if outcome.log_file is None else f"\nAll that it printed: {outcome.log_file}"
