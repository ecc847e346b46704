"""A prober for the search and another for confirming its answers.

Children forked from one server share its address layout, and with it the accidents of its heap: they repeat a peak to
the byte. The processes that people start do not. So an answer runs once more in a child of another server, which
started for itself, at the same time as the first. Where the heap has no say, because tensors have mappings of their
own, equal processes agree whoever forked them, and one server does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brim.cases import Case
from brim.devices import Device
from brim.findings import Race
from brim.probing.isolated import IsolatedProber
from brim.probing.mixing import Mix
from brim.probing.outcome import Outcome, Traced


class PairedProber:
    """Searches in one server's children and confirms in another's."""

    def __init__(
        self,
        address: str,
        device: Device,
        *,
        limits_bytes: tuple[int, ...] = (),
        timeout_seconds: float | None = None,
        rendezvous: Mapping[str, Any] | None = None,
    ) -> None:
        def make() -> IsolatedProber:
            return IsolatedProber(
                address, device, limits_bytes=limits_bytes, timeout_seconds=timeout_seconds, rendezvous=rendezvous
            )

        self._searching = make()
        self._confirming = self._searching if device.has_equal_processes else make()
        self._in_use = self._searching
        self._num_ranks = max(1, len(limits_bytes))

    @property
    def kind(self) -> str:
        """What a step of the workload does."""
        return self._searching.kind

    @property
    def ranks(self) -> int:
        """How many processes share a probe."""
        return self._num_ranks

    def probe(
        self,
        case: Case,
        microbatch: int,
        *,
        steps: int,
        confirms: bool = False,
        mix: Mix = (),
        race: Race | None = None,
        run: str | None = None,
    ) -> Outcome:
        """Run one probe in a fresh process."""
        self._in_use = self._confirming if confirms else self._searching
        return self._in_use.probe(case, microbatch, steps=steps, mix=mix, race=race, run=run)

    def end_probe(self) -> None:
        """End the probe that another thread waits for, which then is unclear."""
        self._in_use.end_probe()

    def trace(self, case: Case, *, cap: int, steps: int) -> Traced:
        """Trace the case in a fresh process."""
        return self._searching.trace(case, cap=cap, steps=steps)

    def close(self) -> None:
        """End both servers and whatever runs in them."""
        self._searching.close()
        if self._confirming is not self._searching:
            self._confirming.close()
