"""What a prober returns, and what it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from brim.cases import Case
from brim.findings import Probe, Race, Verdict
from brim.probing.mixing import Mix


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A probe with what only its error message needs.

    Attributes:
        phase: Where a failed probe was: `build`, `batch` or `step`.
        traceback: The user's own traceback, for the verdict `error`.
        idle: Whether the error is that the step did no work.
        log_tail: The last lines the workload printed, for the verdicts `error` and `unclear`.
        hung: Whether it made no progress for so long that it was ended, for the verdict `unclear`.
        sources: Hashes of the project's files that the workload imported, by path.
        log_file: Where everything it printed is kept, or None where that is not.
        unread: The names of the case that the workload never asked for.
        missed: The names that it asked for and that the case does not have.
    """

    probe: Probe
    phase: str = "step"
    traceback: str | None = None
    idle: bool = False
    log_tail: str = ""
    hung: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)
    log_file: str | None = None
    unread: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain data."""
        return {**asdict(self), "probe": self.probe.to_dict()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Outcome:
        """Read what `to_dict` wrote."""
        return cls(**{**data, "probe": Probe.from_dict(data["probe"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """What tracing a case gave: points of the curve, or why there are none.

    Attributes:
        baseline_bytes: What the process holds before the workload is built.
        points: Traced bytes by microbatch.
        slope: Measured bytes to expect for each traced one.
        expected: Bytes to expect of a process by microbatch, beside the baseline; empty where no allocator was asked.
        gap_from: Where sizes begin that need more memory than the largest that is expected to fit; None without any.
        leak: What is wrong with a step that holds more each time; None where it does not.
    """

    baseline_bytes: int = 0
    points: Mapping[int, int] = field(default_factory=dict)
    slope: float = 1.0
    expected: Mapping[int, int] = field(default_factory=dict)
    gap_from: int | None = None
    leak: str | None = None
    problem: str | None = None


class Prober(Protocol):
    """Runs probes and traces of one workload on one device."""

    @property
    def kind(self) -> str:
        """What a step of the workload does; of a command, known after its first probe."""
        ...

    @property
    def ranks(self) -> int:
        """How many data-parallel processes a probe has; of a command, known after its first probe."""
        ...

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
        """Run one probe; every failure of the workload is an outcome, not an exception.

        Args:
            case: What to build for.
            microbatch: How many samples to ask of `batch`.
            steps: How many whole steps to run.
            confirms: Whether the size has fitted before.
            mix: Cases and microbatches that each step goes through, instead of one batch.
            race: Sizes to time in turn after the steps; None for a loop or a command, which has one size.
        """
        ...

    def trace(self, case: Case, *, cap: int, steps: int) -> Traced:
        """Trace the case's memory over the microbatch as far as the device's limit."""
        ...

    def close(self) -> None:
        """End every process that was started."""


def outcome_from(
    microbatch: int, result: Mapping[str, Any], *, sources: Mapping[str, str], log_tail: str = ""
) -> Outcome:
    """Turn the plain data of a trial into an outcome."""
    probe = Probe(
        microbatch=microbatch,
        verdict=Verdict(result["verdict"]),
        peak_bytes=result.get("peak_bytes"),
        step_seconds=result.get("step_seconds"),
        timings=tuple(result.get("timings", ())),
        laps={int(size): tuple(seconds) for size, seconds in result.get("laps", {}).items()},
        steps=result.get("steps", 0),
        samples=result.get("samples", 0),
        detail=result.get("detail"),
        calls=result.get("calls", {}),
        memory=result.get("memory", {}),
    )
    return Outcome(
        probe=probe,
        phase=result["phase"],
        traceback=result.get("traceback"),
        idle=result.get("idle", False),
        log_tail=log_tail,
        sources=sources,
        unread=tuple(result.get("unread", ())),
        missed=tuple(result.get("missed", ())),
    )
