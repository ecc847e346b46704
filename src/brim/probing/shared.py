"""Probes that several nodes share: each runs its own ranks, and all take the same outcome."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from brim.cases import Case
from brim.errors import BrimError, WorkloadError
from brim.findings import Probe, Race, Verdict
from brim.probing.meeting import Meeting
from brim.probing.merging import merge_nodes
from brim.probing.mixing import Mix
from brim.probing.outcome import Outcome, Traced
from brim.probing.paired import PairedProber


class SharedProber:
    """Runs this node's part of every probe.

    Args:
        prober: What runs it.
        meeting: The nodes.
        ranks: How many ranks there are over all nodes.
    """

    def __init__(self, prober: PairedProber, meeting: Meeting, *, ranks: int) -> None:
        self._prober = prober
        self._meeting = meeting
        self._num_ranks = ranks

    @property
    def kind(self) -> str:
        """What a step of the workload does."""
        return self._prober.kind

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
    ) -> Outcome:
        """Have all nodes run one probe; only the leading node asks for it."""
        request = {
            "run": uuid.uuid4().hex,
            "case": dict(case),
            "microbatch": microbatch,
            "steps": steps,
            "confirms": confirms,
            "mix": list(mix),
            "race": race.to_dict() if race else None,
        }
        self._meeting.tell({"do": "probe", "request": request})
        return self.take_part(request)

    def take_part(self, request: Mapping[str, Any]) -> Outcome:
        """Run this node's part of a probe, and return the outcome of all."""
        run = request["run"]
        try:
            mine = self._run(request)
        except BaseException:
            self._meeting.fail(run)
            raise
        order = 0 if mine.probe.verdict is Verdict.FITS else self._meeting.fail(run)
        shared = self._meeting.exchange(f"outcome/{run}", {"outcome": mine.to_dict(), "order": order})
        outcomes = [Outcome.from_dict(each["outcome"]) for each in shared]
        merged = merge_nodes(outcomes, order=[each["order"] for each in shared])
        return replace(merged, sources=mine.sources)

    def trace(self, case: Case, *, cap: int, steps: int) -> Traced:
        """Trace the case on this node."""
        return self._prober.trace(case, cap=cap, steps=steps)

    def close(self) -> None:
        """End every process of this node."""
        self._prober.close()

    def _run(self, request: Mapping[str, Any]) -> Outcome:
        microbatch = request["microbatch"]
        try:
            with self._meeting.watching(request["run"], self._prober.end_probe):
                outcome = self._prober.probe(
                    Case(request["case"]),
                    microbatch,
                    steps=request["steps"],
                    confirms=request["confirms"],
                    mix=request["mix"],
                    race=Race.from_dict(request["race"]) if request["race"] else None,
                    run=request["run"],
                )
        except BrimError as error:  # the workload, loaded anew, failed here: what all nodes should hear
            traceback = error.traceback if isinstance(error, WorkloadError) else None
            probe = Probe(microbatch=microbatch, verdict=Verdict.ERROR, detail=str(error))
            outcome = Outcome(probe=probe, phase="load", traceback=traceback)
        if outcome.probe.detail is None:
            return outcome
        detail = f"(on {socket.gethostname()}) {outcome.probe.detail}"
        return replace(outcome, probe=replace(outcome.probe, detail=detail))
