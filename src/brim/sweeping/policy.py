"""What happens after a trial ended: recorded, run again, reduced, or the end of the sweep. Pure."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brim.errors import InputError
from brim.sweeping.config import MISSING, canonical, look_up
from brim.sweeping.file import check_names
from brim.sweeping.outcome import ExitKind, TrialOutcome

# Kinds that say nothing about the trial: it has not been run.
NOT_RUN = (ExitKind.NODE_LOST, ExitKind.INTERRUPTED)
# How often a trial may lose its node before it is suspected of killing nodes.
MAX_LOST = 3
# How many trials in a row may fail at once in the same way before the sweep stops.
STOP_AFTER = 5
# A failure is fast when it comes before any training would: imports, data and the first steps take longer.
FAST_SECONDS = 30.0
_ON_OOM = ("reduce", "keep_effective", "skip_larger", "of")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the user wants to happen.

    Attributes:
        reduce: The key that is halved after an OOM, or None to record the OOM as it is.
        keep_effective: The key that grows in turn, so that the effective batch stays the same.
        skip_larger: The key above whose value a trial is not run once a smaller one ran out of memory.
        of: The keys that have to be the same for that.
        stop_after: How many equal fast failures in a row end the sweep; None for never.
    """

    reduce: str | None = None
    keep_effective: str | None = None
    skip_larger: str | None = None
    of: tuple[str, ...] = ()
    stop_after: int | None = STOP_AFTER

    @classmethod
    def read(cls, on_oom: Any, stop_after: Any, *, model_key: str) -> Policy:
        """Read `on_oom:` and `stop_after:` of a sweep file."""
        if stop_after not in (None, 0) and not _is_count(stop_after):
            raise InputError(f"stop_after is {stop_after!r}. Use a number of failures, or 0 to go on whatever fails.")
        stop = STOP_AFTER if stop_after is None else stop_after or None
        if on_oom in (None, "record"):
            return cls(stop_after=stop)
        if not isinstance(on_oom, Mapping):
            raise InputError(f"on_oom is {on_oom!r}. Use record, {{reduce: KEY}} or {{skip_larger: KEY}}.")
        check_names(on_oom, _ON_OOM, "on_oom")
        if ("reduce" in on_oom) == ("skip_larger" in on_oom):
            raise InputError("on_oom needs one of reduce and skip_larger, each with the key of the batch size.")
        if "keep_effective" in on_oom and "reduce" not in on_oom:
            raise InputError("on_oom.keep_effective goes with reduce: it keeps the effective batch of a reduced trial.")
        of = on_oom.get("of", model_key)
        return cls(
            reduce=on_oom.get("reduce"),
            keep_effective=on_oom.get("keep_effective"),
            skip_larger=on_oom.get("skip_larger"),
            of=(of,) if isinstance(of, str) else tuple(of),
            stop_after=stop,
        )

    @property
    def keys(self) -> list[str]:
        """The keys that the policy reads and that every configuration must have."""
        return [key for key in (self.reduce, self.keep_effective, self.skip_larger) if key is not None]


def reduce(policy: Policy, resolved: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the smaller values to try after an OOM; None where there are none.

    With an effective batch to keep, the next size is the largest one, at most half as large, that divides it.

    >>> policy = Policy(reduce="batch", keep_effective="accumulation")
    >>> reduce(policy, {"batch": 24, "accumulation": 2}), reduce(policy, {"batch": 7, "accumulation": 1})
    ({'batch': 12, 'accumulation': 4}, {'batch': 1, 'accumulation': 7})
    >>> reduce(Policy(reduce="batch"), {"batch": 1}) is None
    True
    """
    if policy.reduce is None:
        return None
    batch = look_up(resolved, policy.reduce)
    if not _is_count(batch) or batch < 2:
        return None
    if policy.keep_effective is None:
        return {policy.reduce: batch // 2}
    accumulation = look_up(resolved, policy.keep_effective)
    if not _is_count(accumulation):
        return None
    effective = batch * accumulation
    smaller = next(size for size in range(batch // 2, 0, -1) if effective % size == 0)
    return {policy.reduce: smaller, policy.keep_effective: effective // smaller}


class Frontier:
    """The smallest batch that ran out of memory, by model; larger ones need not be tried."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._smallest: dict[str, float] = {}

    def tell(self, resolved: Mapping[str, Any], kind: ExitKind) -> None:
        """Hear how a trial ended."""
        batch = self._batch(resolved)
        if batch is None:
            return
        model = self._model(resolved)
        smallest = self._smallest.get(model, math.inf)
        if kind is ExitKind.OOM:
            self._smallest[model] = min(batch, smallest)
        elif kind is ExitKind.DONE and batch >= smallest:
            del self._smallest[model]  # what ran out of memory before fits now

    def predicts_oom(self, resolved: Mapping[str, Any]) -> str | None:
        """Return why a trial would run out of memory, or None where nothing says so."""
        batch = self._batch(resolved)
        smallest = self._smallest.get(self._model(resolved)) if batch is not None else None
        if batch is None or smallest is None or batch <= smallest:
            return None
        return f"{self._policy.skip_larger} {smallest:g} already ran out of memory"

    def _batch(self, resolved: Mapping[str, Any]) -> float | None:
        if self._policy.skip_larger is None:
            return None
        batch = look_up(resolved, self._policy.skip_larger)
        return batch if _is_count(batch) else None

    def _model(self, resolved: Mapping[str, Any]) -> str:
        found = (look_up(resolved, key) for key in self._policy.of)
        return canonical([None if value is MISSING else value for value in found])


class Failures:
    """The failures in a row that came fast and looked the same."""

    def __init__(self, policy: Policy) -> None:
        self._stop_after = policy.stop_after
        self._last: deque[str] = deque(maxlen=policy.stop_after or 1)

    def tell(self, outcome: TrialOutcome) -> str | None:
        """Hear how a trial ended and return why the sweep should stop, or None where it should not."""
        if outcome.is_fatal:
            return f"No trial can be started: {outcome.detail}"
        if outcome.kind is not ExitKind.ERROR or outcome.seconds > FAST_SECONDS:
            if outcome.kind not in NOT_RUN:
                self._last.clear()
            return None
        self._last.append(f"{outcome.exit_code} {outcome.detail}")
        if self._stop_after is None or len(self._last) < self._stop_after or len(set(self._last)) > 1:
            return None
        return (
            f"{self._stop_after} trials in a row failed within {FAST_SECONDS:.0f} s in the same way: {outcome.detail}. "
            "Mend it and run the sweep again with --retry error, or write `stop_after: 0` to go on whatever fails."
        )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
