"""The search for one case: asks for probes, is told their outcome, keeps the promise.

The promise: the answer has been run and has fitted, and ran once more before it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from brim.searching.bounds import Bounds
from brim.searching.doubling import Doubling
from brim.searching.known import Known, Trial


class Strategy(Protocol):
    """Decides which microbatch to try next."""

    @property
    def name(self) -> str:
        """How the strategy is called on the command line and in reports."""
        ...

    def propose(self, known: Known) -> int | None:
        """Return the next microbatch to try, or None when there is nothing left to learn."""
        ...


@dataclass(frozen=True, slots=True)
class Ask:
    """A microbatch to probe; `confirms` when it fitted before and is run once more."""

    microbatch: int
    confirms: bool = False


class Search:
    """One search: ask, probe, tell, until there is nothing left to ask.

    >>> from brim.searching.doubling import Doubling
    >>> search = Search(Doubling(refine=True), Bounds(cap=64))
    >>> while (ask := search.ask()) is not None:
    ...     search.tell(ask.microbatch, fits=ask.microbatch <= 23)
    >>> search.answer, search.stopped_by, search.confirmed
    (23, 'memory', True)
    """

    def __init__(
        self,
        strategy: Strategy,
        bounds: Bounds,
        *,
        confirm: bool = True,
        choose: Callable[[Known], int | None] | None = None,
    ) -> None:
        self._strategy = strategy
        self._choose = choose
        self._bounds = bounds
        self._confirm = confirm
        self._trials: list[Trial] = []
        self._num_tries = 0
        self._pending: Ask | None = None
        self._limited_by: str | None = None
        self.confirmed = False

    @property
    def known(self) -> Known:
        """What has been learnt so far."""
        return Known(self._bounds, tuple(self._trials))

    @property
    def answer(self) -> int | None:
        """The largest microbatch that was run and fitted, or what `choose` takes of those."""
        return self._choose(self.known) if self._choose else self.known.largest_fit

    @property
    def stopped_by(self) -> str:
        """What ended the search: `memory`, `cap`, `tries` or `time`; `rate` where it was not the size that counted."""
        if self.answer == self._bounds.largest:
            return "cap"
        if self._choose and self._limited_by is None:
            return "rate"
        if self._limited_by is not None:
            return self._limited_by
        # Doubling ends at the last power of two below the cap.
        is_below_cap = isinstance(self._strategy, Doubling) and all(trial.fits for trial in self._trials)
        return "cap" if is_below_cap else "memory"

    def ask(self, *, elapsed_seconds: float = 0.0) -> Ask | None:
        """Return what to probe next, or None when the search is over."""
        is_late = self._bounds.seconds is not None and elapsed_seconds >= self._bounds.seconds
        if is_late and self._trials and not self.confirmed:
            self._limited_by = "time"
        size = None if self._limited_by == "time" else self._next_size()
        if size is not None:
            self._pending = Ask(size)
        elif self.answer is not None and not self.confirmed and self._confirm:
            self._pending = Ask(self.answer, confirms=True)
        else:
            self._pending = None
        return self._pending

    def tell(
        self,
        microbatch: int,
        *,
        fits: bool,
        peak_bytes: int | None = None,
        step_seconds: float | None = None,
        laps: Mapping[int, tuple[float, ...]] | None = None,
    ) -> None:
        """Record how the probe of the last ask ended."""
        assert self._pending is not None
        assert self._pending.microbatch == microbatch
        self._trials.append(Trial(microbatch, fits, peak_bytes, step_seconds, laps or {}))
        if self._pending.confirms:
            self.confirmed = fits
        else:
            self._num_tries += 1
        self._pending = None

    def _next_size(self) -> int | None:
        if self.confirmed:
            return None
        known = self.known
        if not known.trials and self._bounds.start is not None:
            return self._bounds.clamp(self._bounds.start)
        size = self._strategy.propose(known)
        if size is None:
            return None
        if self._bounds.tries is not None and self._num_tries >= self._bounds.tries:
            self._limited_by = "tries"
            return None
        size = self._bounds.clamp(size)
        tried = {trial.microbatch for trial in known.trials}
        assert size not in tried, f"{self._strategy.name} proposed {size} again"
        return size
