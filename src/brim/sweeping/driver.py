"""The driver: hands trials to an engine, notes how each ended, and decides what follows."""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from brim.errors import DeviceError, SweepStoppedError
from brim.sweeping.config import canonical, merge
from brim.sweeping.engine import TRIALS_FOLDER, Engine
from brim.sweeping.journal import Journal
from brim.sweeping.observer import SweepObserver
from brim.sweeping.outcome import ExitKind, TrialOutcome
from brim.sweeping.past import Past
from brim.sweeping.plan import Plan, Trial
from brim.sweeping.policy import MAX_LOST, NOT_RUN, Failures, Frontier, reduce
from brim.sweeping.results import PREDICTED_OOM, TrialResult, result_of
from brim.sweeping.trial import TrialRequest, forget, recall

# How long the driver waits for news before it looks again; Ctrl-C does not wait for it.
_PATIENCE_SECONDS = 1.0
# Less room than this, and a failure is the disk's.
_FULL_DISK_BYTES = 2**20
# How long trials may take to end: longer than any engine takes to kill one.
_ENDING_SECONDS = 30.0
# How many trials may wait for a batch size that another one is finding, before the plan is read no further.
_LOOKAHEAD = 64


class Sink(Protocol):
    """Told of every trial's result, for another tool to keep; never asked."""

    def record(self, result: TrialResult) -> None:
        """Keep a result."""

    def close(self) -> None:
        """Finish writing."""


@dataclass(slots=True)
class _Open:
    """A trial that has started and not ended for good."""

    trial: Trial
    attempt: int = 1
    effective: Mapping[str, Any] = field(default_factory=dict)
    num_lost: int = 0


class Driver:
    """Runs what the plan has and the past has not."""

    def __init__(
        self,
        *,
        plan: Plan,
        directory: Path,
        engine: Engine,
        journal: Journal,
        past: Past,
        frontier: Frontier,
        observer: SweepObserver,
        sinks: Sequence[Sink],
    ) -> None:
        self._plan = plan
        self._spec = plan.spec
        self._directory = directory
        self._engine = engine
        self._journal = journal
        self._past = past
        self._frontier = frontier
        self._failures = Failures(plan.spec.policy)
        self._observer = observer
        self._sinks = list(sinks)
        self._running: dict[str, _Open] = {}
        self._again: deque[_Open] = deque()
        self._ended: deque[tuple[str, TrialOutcome]] = deque()
        self._sizes = past.sizes
        self._has_warned = False
        self._waiting = self._trials()

    def run(self) -> None:
        """Run every trial; raise where the sweep had to stop."""
        try:
            while True:
                while self._engine.has_room and (chosen := self._next()) is not None:
                    self._start(chosen)
                if not self._running:
                    break
                self._hear_all(self._hear)
        except (KeyboardInterrupt, SweepStoppedError):
            self._end_running()
            raise
        self._observer.ended()

    def _hear_all(self, hear: Callable[[_Open, TrialOutcome], None]) -> None:
        """Hear of every trial that ended; an exception leaves the rest of them for the next time."""
        self._ended.extend(self._engine.wait(0 if self._ended else _PATIENCE_SECONDS))
        while self._ended:
            trial_id, outcome = self._ended.popleft()
            hear(self._running.pop(trial_id), outcome)

    def _trials(self) -> Iterator[_Open]:
        """Yield the trials that have to run, in the plan's order."""
        for trial in self._plan:
            if self._past.has_ended(trial.id):
                continue
            unfinished = self._past.unfinished.get(trial.id)
            if unfinished is None:
                yield _Open(trial=trial)
                continue
            opened = _Open(trial=trial, attempt=unfinished.attempt, effective=unfinished.effective)
            outcome = recall(self._place(trial), opened.attempt, self._spec.batch_key) if unfinished.is_open else None
            if outcome is not None:
                self._hear(opened, outcome)  # it came to its end when the sweep that ran it was dead
            else:
                yield replace(opened, attempt=opened.attempt + 1)

    def _next(self) -> _Open | None:
        """Return the next trial that can start; one whose batch size is being found waits for that."""
        for opened in self._again:
            if not self._sizes.is_being_found(self._key(opened)):
                self._again.remove(opened)
                return opened
        while len(self._again) < _LOOKAHEAD:
            following = next(self._waiting, None)
            if following is None or not self._sizes.is_being_found(self._key(following)):
                return following
            self._again.append(following)
        return None

    def _key(self, opened: _Open) -> str | None:
        """Return what stands for the search that a trial needs; None where it needs none."""
        find = opened.trial.find
        return None if find is None or self._spec.batch_key in opened.effective else canonical(find)

    def _start(self, opened: _Open) -> None:
        trial, key = opened.trial, self._key(opened)
        if key is not None and self._sizes.is_known(key):
            microbatch = self._sizes[key]
            if microbatch is None:
                self._hear(opened, TrialOutcome(kind=ExitKind.OOM, detail="nothing fits, as another trial found"))
                return
            opened.effective = {**opened.effective, self._spec.batch_key: microbatch}
            key = None
        reason = self._frontier.predicts_oom(merge(trial.resolved, opened.effective))
        if reason is not None:
            self._skip(trial, reason)
            return
        if key is not None:
            self._sizes.find(key)
        self._journal.write(
            "started",
            sync=False,
            trial=trial.id,
            attempt=opened.attempt,
            config=dict(trial.config),
            effective=dict(opened.effective),
        )
        self._running[trial.id] = opened
        self._observer.trial_started(trial, opened.attempt)
        self._engine.start(self._request(opened, trial.find if key is not None else None), self._place(trial))

    def _request(self, opened: _Open, find: Mapping[str, Any] | None) -> TrialRequest:
        spec = self._spec
        return TrialRequest(
            trial_id=opened.trial.id,
            attempt=opened.attempt,
            config=merge(opened.trial.resolved, opened.effective),
            command=spec.command,
            function=spec.function,
            workdir=str(spec.workdir),
            find=find,
            find_key=spec.batch_key,
            timeout_seconds=spec.timeout_seconds,
        )

    def _hear(self, opened: _Open, outcome: TrialOutcome) -> None:
        """Settle an attempt; stop where the next ones would fail like it."""
        self._check_disk(opened.trial, outcome)
        self._settle(opened, outcome)
        reason = self._failures.tell(outcome)
        if reason is not None:
            raise SweepStoppedError(reason)

    def _settle(self, opened: _Open, outcome: TrialOutcome) -> None:
        """Note how an attempt ended and what follows: nothing, or another attempt."""
        key = self._key(opened)
        if key is not None:
            self._sizes.learn(key, outcome.effective.get(self._spec.batch_key), outcome.kind)
        outcome = replace(outcome, effective={**opened.effective, **outcome.effective})
        again, following = self._decide(opened, outcome)
        self._note(opened, outcome, again=again, following=following)
        if again is not None:
            num_lost = opened.num_lost + (outcome.kind is ExitKind.NODE_LOST)
            self._again.append(replace(opened, attempt=opened.attempt + 1, effective=again, num_lost=num_lost))

    def _decide(self, opened: _Open, outcome: TrialOutcome) -> tuple[Mapping[str, Any] | None, str | None]:
        """Return the values to run again with, and why; None where the outcome stands."""
        if outcome.kind is ExitKind.NODE_LOST and opened.num_lost + 1 < MAX_LOST:
            return opened.effective, "runs again"
        if outcome.kind is ExitKind.OOM:
            smaller = reduce(self._spec.policy, merge(opened.trial.resolved, outcome.effective))
            if smaller is not None:
                told = " ".join(f"{key}={value}" for key, value in smaller.items())
                return {**outcome.effective, **smaller}, f"runs again with {told}"
        return None, None

    def _note(
        self, opened: _Open, outcome: TrialOutcome, *, again: Mapping[str, Any] | None, following: str | None
    ) -> None:
        """Write the outcome into the journal, then tell everyone."""
        trial = opened.trial
        if outcome.is_fatal:
            outcome = replace(outcome, kind=ExitKind.INTERRUPTED)  # the trial has not been run
        self._journal.write(
            "ended",
            trial=trial.id,
            attempt=opened.attempt,
            config=dict(trial.config),
            outcome=outcome.to_dict(),
            again=None if again is None else dict(again),
            found=self._sizes.noted(self._key(opened)),
        )
        self._frontier.tell(merge(trial.resolved, outcome.effective), outcome.kind)
        result = result_of(trial, opened.attempt, outcome)
        self._observer.trial_ended(result, following)
        if result.status == ExitKind.DONE and not result.metrics and not self._has_warned:
            self._has_warned = True
            self._observer.warn("A trial ended without metrics. Write them as JSON to the path in BRIM_RESULT.")
        if again is None and outcome.kind not in NOT_RUN:
            self._record(result)

    def _skip(self, trial: Trial, reason: str) -> None:
        self._journal.write(
            "skipped", sync=False, trial=trial.id, config=dict(trial.config), status=PREDICTED_OOM, detail=reason
        )
        result = TrialResult(id=trial.id, config=trial.config, status=PREDICTED_OOM, detail=reason)
        self._observer.trial_ended(result, None)

    def _record(self, result: TrialResult) -> None:
        """Pass a result on; a sink that fails is left out, for the journal is what counts."""
        for sink in list(self._sinks):
            try:
                sink.record(result)
            except Exception as error:  # noqa: BLE001  another tool may raise anything
                self._sinks.remove(sink)
                self._observer.warn(f"{type(sink).__name__} failed and gets no more results: {error}")

    def _end_running(self) -> None:
        """End what runs and note it; what does not answer counts as interrupted all the same, and runs again."""
        self._engine.stop()
        deadline = time.monotonic() + _ENDING_SECONDS
        while self._running and time.monotonic() < deadline:
            self._hear_all(self._settle)

    def _check_disk(self, trial: Trial, outcome: TrialOutcome) -> None:
        """Stop where a trial failed because the disk is full: it says nothing about the trial, nor about the next."""
        if outcome.kind is ExitKind.ERROR and shutil.disk_usage(self._directory).free < _FULL_DISK_BYTES:
            forget(self._place(trial))
            raise DeviceError(
                f"The disk that holds {self._directory} is full. Make room and run the sweep again: it goes on here."
            )

    def _place(self, trial: Trial) -> Path:
        return self._directory / TRIALS_FOLDER / trial.id
