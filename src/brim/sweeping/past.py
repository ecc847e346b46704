"""What earlier runs of a sweep left behind, read from its journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brim.sweeping.auto import BatchSizes
from brim.sweeping.config import merge
from brim.sweeping.journal import naming_lines, read_journal
from brim.sweeping.outcome import ExitKind
from brim.sweeping.plan import Plan
from brim.sweeping.policy import NOT_RUN, Frontier


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """A trial that was started and has to run again.

    Attributes:
        attempt: How often it was started.
        effective: The values it should run with instead of the requested ones.
        is_open: Whether nobody noted how its last attempt ended.
    """

    attempt: int
    effective: Mapping[str, Any] = field(default_factory=dict)
    is_open: bool = False


class Past:
    """What is known of earlier runs: which trials ended, which have to run again, which batch sizes were found.

    Ended trials are kept as bare numbers, so that a journal of a million fits into memory.
    """

    def __init__(self, directory: Path, plan: Plan, *, retry: frozenset[str], frontier: Frontier) -> None:
        self._plan = plan
        self._retry = retry
        self._frontier = frontier
        self._ended: set[int] = set()
        self.unfinished: dict[str, Unfinished] = {}
        self.sizes = BatchSizes()
        self.num_kept = 0
        with naming_lines(directory):
            for event in read_journal(directory):
                if event["event"] == "started":
                    unfinished = Unfinished(attempt=event["attempt"], effective=event["effective"], is_open=True)
                    self.unfinished[event["trial"]] = unfinished
                elif event["event"] == "ended":
                    self._hear(event)

    def has_ended(self, trial_id: str) -> bool:
        """Return whether a trial need not be run."""
        return int(trial_id, 16) in self._ended

    def count_kept(self, directory: Path) -> None:
        """Count the ended trials that the plan still has."""
        seen: set[int] = set()
        for event in read_journal(directory):
            number = int(event["trial"], 16)
            if event["event"] == "ended" and number in self._ended and number not in seen:
                seen.add(number)
                self.num_kept += self._plan.holds(event["config"], event["trial"])

    def _hear(self, event: Mapping[str, Any]) -> None:
        trial_id, outcome = event["trial"], event["outcome"]
        kind = ExitKind(outcome["kind"])
        self.sizes.recall(event["found"], search_again=ExitKind.OOM.value in self._retry)
        runs_again = kind.value in self._retry
        if self._plan.spec.policy.skip_larger is not None and not runs_again and event["config"] in self._plan.grid:
            used = merge(self._plan.trial(event["config"]).resolved, outcome["effective"])
            self._frontier.tell(used, kind)
        if event["again"] is None and kind not in NOT_RUN and not runs_again:
            self._ended.add(int(trial_id, 16))
            self.unfinished.pop(trial_id, None)
            return
        self._ended.discard(int(trial_id, 16))
        self.unfinished[trial_id] = Unfinished(attempt=event["attempt"], effective=event["again"] or {})
