"""Who is told what while a search runs."""

from __future__ import annotations

import logging
from typing import Protocol

from brim.cases import Case
from brim.findings import Finding, Probe, Verdict
from brim.searching import Ask
from brim.units import format_bytes, format_seconds

_MARKS = {Verdict.FITS: "✓", Verdict.OOM: "✗", Verdict.ERROR: "!", Verdict.UNCLEAR: "?"}


class Observer(Protocol):
    """Told of every step of the search, in order."""

    def started(self, cases: list[Case], *, limit_bytes: int) -> None:
        """Hear of the cases, before the first."""

    def case_started(self, case: Case) -> None:
        """Hear that a case begins."""

    def probe_started(self, case: Case, ask: Ask) -> None:
        """Hear that a probe begins."""

    def probe_ended(self, case: Case, probe: Probe, following: Ask | None) -> None:
        """Hear how a probe ended and what is tried next; None when the case is answered."""

    def found(self, finding: Finding) -> None:
        """Hear of a case's finding."""

    def output(self, line: str) -> None:
        """Hear the last line that a command has printed."""

    def note(self, message: str) -> None:
        """Hear what a user may want to know."""

    def warn(self, message: str) -> None:
        """Hear what a user should know."""


class LogObserver:
    """Writes a line for each step to the logger `brim`."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("brim")
        self._limit_bytes = 0
        self._num_cases = 0

    def started(self, cases: list[Case], *, limit_bytes: int) -> None:
        """Log how many cases there are."""
        self._limit_bytes, self._num_cases = limit_bytes, len(cases)

    def case_started(self, case: Case) -> None:
        """Log the case's name where it has one."""
        if case or self._num_cases > 1:
            self._logger.info("case %s", case)

    def probe_started(self, case: Case, ask: Ask) -> None:
        """Log nothing: the line of the probe before said it."""

    def probe_ended(self, case: Case, probe: Probe, following: Ask | None) -> None:
        """Log how the probe ended and what comes next."""
        self._logger.info("%s", describe_probe(probe, self._limit_bytes, following))

    def found(self, finding: Finding) -> None:
        """Log the answer."""
        self._logger.info("%s", describe_finding(finding))

    def output(self, line: str) -> None:
        """Log at level DEBUG."""
        self._logger.debug("%s", line)

    def note(self, message: str) -> None:
        """Log at level INFO."""
        self._logger.info("%s", message)

    def warn(self, message: str) -> None:
        """Log at level WARNING."""
        self._logger.warning("%s", message)


def describe_probe(probe: Probe, limit_bytes: int, following: Ask | None) -> str:
    """Return one line for a probe and what follows it.

    >>> probe = Probe(microbatch=28, verdict=Verdict.FITS, peak_bytes=1299227607)
    >>> describe_probe(probe, 1449551462, Ask(42))
    '✓ microbatch 28 fits (1.21 GiB of 1.35 GiB), trying 42'
    """
    said = {
        Verdict.FITS: "fits",
        Verdict.OOM: "is out of memory",
        Verdict.ERROR: "failed",
        Verdict.UNCLEAR: "ended for no known reason",
    }[probe.verdict]
    line = f"{_MARKS[probe.verdict]} microbatch {probe.microbatch} {said}"
    if probe.peak_bytes is not None and probe.verdict is Verdict.FITS:
        line += f" ({format_bytes(probe.peak_bytes)} of {format_bytes(limit_bytes)})"
    elif probe.verdict is Verdict.UNCLEAR:
        line += f" ({probe.detail})"
    if following is None:
        return line
    if following.confirms:
        return f"{line}, confirming {following.microbatch}"
    again = " again" if following.microbatch == probe.microbatch else ""
    return f"{line}, trying {following.microbatch}{again}"


def describe_finding(finding: Finding) -> str:
    """Return one line for a finding."""
    if finding.microbatch is None:
        return f"{finding.answer}: {finding.note}"
    num_probes = len(finding.probes)
    line = f"= microbatch {finding.microbatch} in {num_probes} probe{'s' if num_probes != 1 else ''}"
    line += f", {format_seconds(finding.seconds)}"
    return line if finding.stopped_by == "memory" else f"{line} (stopped by {finding.stopped_by})"
