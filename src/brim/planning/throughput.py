"""The time of a step over the microbatch: `T(b) = α + β·b`, and where more samples stop paying."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brim.errors import InputError
from brim.findings import Probe, Verdict
from brim.planning.step_time import KNEE_SHARE, StepTime, fit_step_time
from brim.units import format_rate

# A larger microbatch that is slower by less than this, as a share, may be so by chance.
SLOWER = 0.05
# Where half of the steps of a size lie further apart than this, as a share of their median, its rate is hardly known.
WIDE_SPREAD = 0.25
# Where the line misses a measured rate by more than this, as a share of it, the step times are no line. Equal races
# differ by 1 to 2%, processes of the same size by several percent: three times that is not chance.
MOST_MISSED = 0.15


def rates_of_races(races: Sequence[Mapping[int, Sequence[float]]]) -> dict[int, float]:
    """Return samples per second of every size, in rising order, as if all had run under the same conditions.

    In a race sizes take turns, so what else the machine does meets them alike: each round is one comparison of all
    sizes, and the median of the rounds decides. Of two races the sizes that both had tell how much faster the machine
    was in one of them.

    Args:
        races: For each race the time of a step by size, round by round.

    >>> one, other = {8: [0.4, 0.8], 4: [0.25, 0.5]}, {4: [0.125, 0.125], 2: [0.125, 0.125]}
    >>> {size: round(rate, 2) for size, rate in rates_of_races([one, other]).items()}
    {2: 16.0, 4: 32.0, 8: 40.0}
    """
    logs: dict[int, list[float]] = {}
    for laps in reversed(races):
        race = {size: statistics.median(rates) for size, rates in _compare(laps).items()}
        shared = [statistics.fmean(logs[size]) - rate for size, rate in race.items() if size in logs]
        shift = statistics.median(shared) if shared else 0.0
        for size, rate in race.items():
            logs.setdefault(size, []).append(rate + shift)
    return {size: math.exp(statistics.fmean(logs[size])) for size in sorted(logs)}


def _compare(laps: Mapping[int, Sequence[float]]) -> dict[int, list[float]]:
    """Return the logarithm of each size's rate in every round, as if all rounds had been as fast as the typical one."""
    rates = {size: [math.log(size / time) for time in seconds] for size, seconds in laps.items()}
    means = [statistics.fmean(turn) for turn in zip(*rates.values(), strict=True)]
    typical = statistics.median(means)
    return {
        size: [typical + rate - mean for rate, mean in zip(logs, means, strict=True)] for size, logs in rates.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """The rate of one microbatch over all that was timed of it.

    Attributes:
        samples_per_second: The rate in the races, or, where there were none, that of the median step.
        spread: Half of the range between the quartiles of the times, as a share of their median; None of one time.
        num_timings: How many turns of a race, or else steps, were timed.
    """

    microbatch: int
    samples_per_second: float
    spread: float | None
    num_timings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Samples per second over the microbatch, as probes measured it.

    Attributes:
        rates: In order of the microbatch.
        line: The line through the step times, or None where they do not grow with the microbatch.
        is_raced: Whether the sizes took turns.
    """

    rates: tuple[Rate, ...]
    line: StepTime | None
    is_raced: bool = False

    @property
    def best(self) -> Rate:
        """The fastest that was measured."""
        return max(self.rates, key=lambda rate: rate.samples_per_second)

    @property
    def is_slower_above(self) -> bool:
        """Whether the largest microbatch is slower than the best, by more than chance."""
        return self.rates[-1].samples_per_second < (1 - SLOWER) * self.best.samples_per_second

    @property
    def line_misses_by(self) -> float | None:
        """The most by which the line misses a measured rate, as a share of it; None where there is no line."""
        if self.line is None:
            return None
        return max(abs(self.line.rate(each.microbatch) / each.samples_per_second - 1) for each in self.rates)

    @property
    def is_linear(self) -> bool:
        """Whether the line is near enough to the rates to say something of them."""
        return self.line_misses_by is not None and self.line_misses_by <= MOST_MISSED

    @property
    def knee(self) -> int | None:
        """The line's knee; None where the times make no line, or where no size so large was timed."""
        if self.line is None or not self.is_linear or self.line.knee > self.rates[-1].microbatch:
            return None
        return self.line.knee

    @property
    def timed_by(self) -> str:
        """What a rate is of."""
        return "median turn" if self.is_raced else "median step"

    def describe(self) -> str:
        """Return what was learnt, in one line."""
        best = self.best
        parts = [*self._describe_line(), f"best rate {format_rate(best.samples_per_second)}/s at {best.microbatch:,}"]
        # Half of the steps lie within the spread: a wide one says that something else ran as well.
        spread = "nothing to compare it with" if best.spread is None else f"±{best.spread:.0%}"
        parts[-1] += f" ({self.timed_by} of {best.num_timings}, {spread})"
        if self.is_slower_above:
            last = self.rates[-1]
            share = 1 - last.samples_per_second / best.samples_per_second
            parts.append(f"larger is slower here: {last.microbatch:,} by {share:.0%}")
        if (best.spread or 0.0) > WIDE_SPREAD:
            parts.append("the steps differ so much that this says little: ask again while nothing else runs")
        return "; ".join(parts)

    def _describe_line(self) -> list[str]:
        """Return what the line says, as far as it can be trusted."""
        if self.line is None:
            return []
        if not self.is_linear:
            return [f"the step times are no line: the nearest misses a rate by {self.line_misses_by:.0%}"]
        fixed, sample = 1000 * self.line.fixed_seconds, 1000 * self.line.sample_seconds
        formula = f"a step takes {fixed:.3g} ms + {sample:.3g} ms × microbatch"
        if not self.line.fixed_seconds:
            return [formula, "every size runs at its peak rate, so it has no knee"]
        if self.knee is None:
            return [formula, f"its knee lies beyond {self.rates[-1].microbatch:,}, the largest size that was timed"]
        return [formula, f"{KNEE_SHARE:.0%} of its peak rate from {self.knee:,} on"]

    def to_dict(self) -> dict[str, Any]:
        """Return the curve as plain data; `knee` is the microbatch of 90% of the peak rate."""
        line = self.line
        return {
            "rates": [
                {
                    "microbatch": rate.microbatch,
                    "samples_per_second": rate.samples_per_second,
                    "spread": rate.spread,
                    "timings": rate.num_timings,
                }
                for rate in self.rates
            ],
            "fixed_seconds": line.fixed_seconds if line else None,
            "sample_seconds": line.sample_seconds if line else None,
            "line_misses_by": self.line_misses_by,
            "knee": self.knee,
            "best": self.best.microbatch,
            "larger_is_slower": self.is_slower_above,
            "raced": self.is_raced,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Throughput:
        """Read what `to_dict` wrote."""
        rates = tuple(
            Rate(
                microbatch=rate["microbatch"],
                samples_per_second=rate["samples_per_second"],
                spread=rate["spread"],
                num_timings=rate["timings"],
            )
            for rate in data["rates"]
        )
        fixed, sample = data["fixed_seconds"], data["sample_seconds"]
        line = None if sample is None else StepTime(fixed_seconds=fixed, sample_seconds=sample)
        return cls(rates=rates, line=line, is_raced=data.get("raced", False))


def measure_throughput(probes: Iterable[Probe]) -> Throughput | None:
    """Return the curve of the probes that fitted and were timed, or None where they are of fewer than two sizes."""
    fitted = [probe for probe in probes if probe.verdict is Verdict.FITS]
    races = [probe.laps for probe in fitted if probe.laps]
    rates = _raced(races) if races else _timed(fitted)
    if len(rates) < 2:
        return None
    try:
        line = fit_step_time({rate.microbatch: rate.microbatch / rate.samples_per_second for rate in rates})
    except InputError:
        line = None
    return Throughput(rates=rates, line=line, is_raced=bool(races))


def _raced(races: Sequence[Mapping[int, Sequence[float]]]) -> tuple[Rate, ...]:
    times: dict[int, list[float]] = {}
    for laps in races:
        for size, logs in _compare(laps).items():
            times.setdefault(size, []).extend(math.exp(statistics.median(logs) - rate) for rate in logs)
    return tuple(
        Rate(microbatch=size, samples_per_second=rate, spread=_spread(times[size]), num_timings=len(times[size]))
        for size, rate in rates_of_races(races).items()
    )


def _timed(probes: Sequence[Probe]) -> tuple[Rate, ...]:
    times: dict[int, list[float]] = {}
    for probe in probes:
        timings = probe.timings or ((probe.step_seconds,) if probe.step_seconds else ())
        if timings:
            times.setdefault(probe.microbatch, []).extend(timings)
    return tuple(
        Rate(
            microbatch=size,
            samples_per_second=size / statistics.median(times[size]),
            spread=_spread(times[size]),
            num_timings=len(times[size]),
        )
        for size in sorted(times)
    )


def _spread(times: list[float]) -> float | None:
    if len(times) < 2:
        return None  # one time says nothing of how others would differ
    lower, median, upper = statistics.quantiles(times, n=4)
    return (upper - lower) / 2 / median
