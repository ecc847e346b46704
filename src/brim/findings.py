"""The values that flow between search, probe, history and report: probes and findings."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from html import escape
from typing import Any

from brim.cases import Case
from brim.units import format_bytes

SCHEMA = "brim.findings/1"
LARGEST = "largest"
FASTEST = "fastest"
# Steps at the beginning of a turn in a race that are not timed.
NUM_UNTIMED = 1


def goal_of(strategy: str) -> str:
    """Return what a strategy searches for."""
    return FASTEST if strategy == FASTEST else LARGEST


class Verdict(str, enum.Enum):
    """How a probe ended."""

    FITS = "fits"
    OOM = "oom"
    ERROR = "error"
    UNCLEAR = "unclear"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Race:
    """Sizes to time in turn in one process, where whatever else the machine does meets all of them.

    Attributes:
        sizes: The microbatches.
        rounds: How often each has its turn, in which every size runs about as many samples as the largest in a step.
    """

    sizes: tuple[int, ...]
    rounds: int

    def steps_in_turn(self, size: int) -> int:
        """Return how many steps of a size one turn has, beside those that are not timed."""
        return max(1, max(self.sizes) // size)

    def to_dict(self) -> dict[str, Any]:
        """Return the race as plain data."""
        return {"sizes": list(self.sizes), "rounds": self.rounds}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Race:
        """Read what `to_dict` wrote."""
        return cls(tuple(data["sizes"]), data["rounds"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One real trial at one microbatch.

    Attributes:
        peak_bytes: The largest amount of the device's memory that the trial held, or None where it is not known.
        step_seconds: The median time of a step after the first, or of the only one.
        timings: The times of the steps after the first, or of the only one.
        laps: Of a race that followed, for each size the time of a step in every round.
        samples: How many of them the model was seen to be given over all steps, or None where that cannot be seen.
        calls: How often each of forward, backward and optimizer really ran.
        memory: The peaks of the device apart, e.g. allocated, reserved and driver-side bytes.
        detail: Why it did not fit, in one line.
    """

    microbatch: int
    verdict: Verdict
    peak_bytes: int | None = None
    step_seconds: float | None = None
    steps: int = 0
    samples: int | None = 0
    detail: str | None = None
    timings: tuple[float, ...] = ()
    laps: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    calls: Mapping[str, int] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)

    @property
    def samples_per_second(self) -> float | None:
        """Samples per second over the steps that were timed."""
        return self.microbatch / self.step_seconds if self.step_seconds else None

    def to_dict(self) -> dict[str, Any]:
        """Return the probe as plain data."""
        return {
            "microbatch": self.microbatch,
            "verdict": self.verdict.value,
            "peak_bytes": self.peak_bytes,
            "step_seconds": self.step_seconds,
            "steps": self.steps,
            "samples": self.samples,
            "detail": self.detail,
            "timings": list(self.timings),
            "laps": {str(size): list(seconds) for size, seconds in self.laps.items()},
            "calls": dict(self.calls),
            "memory": dict(self.memory),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Probe:
        """Read what `to_dict` wrote; what a newer brim wrote besides is passed over."""
        known = {each.name: data[each.name] for each in fields(cls) if each.name in data}
        laps = {int(size): tuple(seconds) for size, seconds in data.get("laps", {}).items()}
        read = {"verdict": Verdict(data["verdict"]), "timings": tuple(data.get("timings", ())), "laps": laps}
        return cls(**{**known, **read})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The answer for one case, with every probe that led to it.

    Attributes:
        microbatch: The largest microbatch that was run and fitted, or None where nothing fits.
        stopped_by: What ended it: `memory`, `cap`, `tries` or `time`; `rate` for the goal `fastest` below the cap.
        confirmed: Whether the answer ran once more in a fresh process.
        predicted: `largest` and `peak_bytes` as traced before the first probe, or None.
        throughput: The rates that were measured and the line through them, or None where fewer than two sizes fitted.
        note: What a user should know, in one line, or None.
        seconds: The time that the case took.
    """

    case: Case
    microbatch: int | None
    stopped_by: str
    confirmed: bool
    probes: tuple[Probe, ...]
    predicted: Mapping[str, int] | None = None
    note: str | None = None
    seconds: float = 0.0
    throughput: Mapping[str, Any] | None = None

    @property
    def status(self) -> str:
        """`found` or `nothing_fits`."""
        return "nothing_fits" if self.microbatch is None else "found"

    @property
    def answer(self) -> str:
        """The microbatch as it is shown, or that there is none: none was found where tries or time ended too soon."""
        if self.microbatch is not None:
            return f"{self.microbatch:,}"
        smallest = min((probe.microbatch for probe in self.probes), default=1)
        is_cut_short = self.stopped_by in ("tries", "time") and smallest > 1
        return "none found" if is_cut_short else "nothing fits"

    @property
    def best_probe(self) -> Probe | None:
        """The last probe that ran the answer and fitted."""
        fitted = [p for p in self.probes if p.microbatch == self.microbatch and p.verdict is Verdict.FITS]
        return fitted[-1] if fitted else None

    @property
    def peak_bytes(self) -> int | None:
        """The peak of the answer's last probe."""
        return self.best_probe.peak_bytes if self.best_probe else None

    @property
    def samples_per_second(self) -> float | None:
        """The rate of the answer's last probe."""
        return self.best_probe.samples_per_second if self.best_probe else None

    @property
    def rate(self) -> float | None:
        """Samples per second of the answer: in races where there were some, else of its last probe.

        It is what people are shown, so that a table and the curve of a race under it agree.
        """
        rates = self.throughput["rates"] if self.throughput and self.throughput.get("raced") else ()
        measured = (each["samples_per_second"] for each in rates if each["microbatch"] == self.microbatch)
        return next(measured, self.samples_per_second)

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        return {
            "case": dict(self.case),
            "status": self.status,
            "microbatch": self.microbatch,
            "stopped_by": self.stopped_by,
            "confirmed": self.confirmed,
            "peak_bytes": self.peak_bytes,
            "samples_per_second": self.samples_per_second,
            "predicted": dict(self.predicted) if self.predicted else None,
            "throughput": dict(self.throughput) if self.throughput else None,
            "note": self.note,
            "seconds": self.seconds,
            "probes": [probe.to_dict() for probe in self.probes],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Finding:
        """Read what `to_dict` wrote."""
        return cls(
            case=Case(data["case"]),
            microbatch=data["microbatch"],
            stopped_by=data["stopped_by"],
            confirmed=data["confirmed"],
            predicted=data.get("predicted"),
            throughput=data.get("throughput"),
            note=data.get("note"),
            seconds=data.get("seconds", 0.0),
            probes=tuple(Probe.from_dict(probe) for probe in data["probes"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Findings:
    """The findings of one run, one for each case, in the order of the cases."""

    workload: str
    kind: str
    device_name: str
    memory_bytes: int
    fill: float
    strategy: str
    findings: tuple[Finding, ...]
    ranks: int = 1

    def __repr__(self) -> str:
        """Write the answers, one in a line."""
        rows = [self._heading, *("  ".join((case.ljust(self._width), *rest)).rstrip() for case, *rest in self._rows())]
        return "\n".join(rows)

    def _repr_html_(self) -> str:
        """Return the same as a table for a notebook."""
        cells = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in self._rows())
        return f"<table><caption>{escape(self._heading)}</caption>{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"

    @property
    def _heading(self) -> str:
        return f"{self.workload} ({self.kind}) on {self.device_name}, limit {format_bytes(self.limit_bytes)}"

    @property
    def _width(self) -> int:
        return max((len(str(finding.case)) for finding in self.findings), default=0)

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        for finding in self.findings:
            peak = "" if finding.peak_bytes is None else f"peak {format_bytes(finding.peak_bytes)}"
            yield str(finding.case), finding.answer, peak

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __getitem__(self, case: int | Mapping[str, Any]) -> Finding:
        """Return a finding by its position or by its case."""
        if isinstance(case, int):
            return self.findings[case]
        for finding in self.findings:
            if finding.case == Case(case):
                return finding
        raise KeyError(str(Case(case)))

    @property
    def microbatch(self) -> int | None:
        """The microbatch that fits every case, or None where one of them has none."""
        sizes = [finding.microbatch for finding in self.findings]
        return None if not sizes or None in sizes else min(size for size in sizes if size is not None)

    @property
    def goal(self) -> str:
        """What was searched for: `largest` or `fastest`, which has a strategy of its own."""
        return goal_of(self.strategy)

    @property
    def limit_bytes(self) -> int:
        """The peak that a microbatch may reach."""
        return int(self.memory_bytes * self.fill)

    def to_dict(self) -> dict[str, Any]:
        """Return the document `brim.findings/1`."""
        return {
            "schema": SCHEMA,
            "workload": self.workload,
            "kind": self.kind,
            "ranks": self.ranks,
            "device": {"name": self.device_name, "memory_bytes": self.memory_bytes, "fill": self.fill},
            "strategy": self.strategy,
            "findings": [finding.to_dict() for finding in self.findings],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Findings:
        """Read what `to_dict` wrote."""
        device = data["device"]
        return cls(
            workload=data["workload"],
            kind=data["kind"],
            device_name=device["name"],
            memory_bytes=device["memory_bytes"],
            fill=device["fill"],
            strategy=data["strategy"],
            findings=tuple(Finding.from_dict(finding) for finding in data["findings"]),
            ranks=data["ranks"],
        )
