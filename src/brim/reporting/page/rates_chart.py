"""Samples per second over the microbatch as a chart: every rate with its spread, the answer, the line and its knee."""

from __future__ import annotations

from brim.findings import Finding
from brim.planning.step_time import KNEE_SHARE
from brim.planning.throughput import SLOWER, Rate, Throughput, measure_throughput
from brim.reporting.page.axes import count, rate
from brim.reporting.page.charts import Row, both_widths, dots
from brim.reporting.page.section import Chart, Table

_NUM_CURVE_POINTS = 60
# Sizes have to lie this many times apart for a line through their step times to mean anything.
FIT_SPAN = 2


def rates_chart(finding: Finding) -> Chart | None:
    """Return the chart of a finding's rates, or None where fewer than two sizes were timed."""
    throughput = _throughput(finding)
    if throughput is None:
        return None
    largest, best = throughput.rates[-1].microbatch, throughput.best.samples_per_second
    points = [
        {
            "x": each.microbatch,
            "y": round(each.samples_per_second, 3),
            "verdict": "fits",
            "tip": f"microbatch {each.microbatch:,}: {rate(each.samples_per_second)} samples/s, {_spread(each)}",
        }
        for each in throughput.rates
    ]
    lines: list[Row] = []
    if finding.microbatch is not None:
        lines.append({**_upright("answer", finding.microbatch, largest), "is_answer": True})
    if _has_curve(throughput) and throughput.knee is not None and throughput.knee >= throughput.rates[0].microbatch:
        lines.append(_upright("knee", throughput.knee, largest))
    return Chart(
        title="Samples per second",
        summary=_summary(throughput),
        **both_widths(
            dots,
            points,
            lines=lines,
            curve=_curve(throughput),
            ranges=_ranges(throughput),
            bands=[{"low": (1 - SLOWER) * best, "high": best, "label": f"within {SLOWER:.0%} of the best"}],
            x_title="microbatch",
            y_title="samples/s",
        ),
        table=_rate_table(throughput),
    )


def _upright(name: str, microbatch: int, largest: int) -> Row:
    """Return a named line; beyond the middle its name stands to the left of it, where there is room."""
    return {"x": microbatch, "label": f"{name} {microbatch:,}", "is_left": microbatch > largest / 2}


def _throughput(finding: Finding) -> Throughput | None:
    """Return the finding's own curve, or one of its probes where it has none."""
    known = finding.throughput
    return measure_throughput(finding.probes) if known is None else Throughput.from_dict(known)


def _has_curve(throughput: Throughput) -> bool:
    """Return whether a line through the step times means anything; noise is no slope."""
    first, last = throughput.rates[0], throughput.rates[-1]
    return throughput.is_linear and last.microbatch >= FIT_SPAN * first.microbatch


def _curve(throughput: Throughput) -> list[Row]:
    if throughput.line is None or not _has_curve(throughput):
        return []
    first, last = throughput.rates[0].microbatch, throughput.rates[-1].microbatch
    along = [*range(first, last, max(1, (last - first) // _NUM_CURVE_POINTS)), last]
    return [{"x": size, "y": round(throughput.line.rate(size), 3)} for size in along]


def _ranges(throughput: Throughput) -> list[Row]:
    """Return within what half of the times of each size lie, as rates."""
    return [
        {
            "x": each.microbatch,
            "low": each.samples_per_second * max(0.0, 1 - each.spread),
            "high": each.samples_per_second * (1 + each.spread),
        }
        for each in throughput.rates
        if each.spread is not None
    ]


def _summary(throughput: Throughput) -> str:
    """Say what the rates show, and of the line no more than it can say."""
    first, last, line = throughput.rates[0], throughput.rates[-1], throughput.line
    if last.microbatch < FIT_SPAN * first.microbatch:
        near = f"From {first.microbatch:,} to {last.microbatch:,} is too near for a curve"
        return f"{near}: size and noise cannot be told apart."
    if line is None:
        is_slower = last.samples_per_second < first.samples_per_second
        return "Larger was slower." if is_slower else "The step times do not grow with the size."
    if not throughput.is_linear:
        no_line = f"The step times are no line: the nearest misses a rate by {throughput.line_misses_by:.0%}"
        return f"{no_line}; larger is slower here." if throughput.is_slower_above else f"{no_line}."
    formula = f"A step takes {1000 * line.fixed_seconds:.3g} ms + {1000 * line.sample_seconds:.3g} ms a sample"
    if throughput.knee is None:
        return f"{formula}; the line's knee lies beyond {last.microbatch:,}, the largest size that was timed."
    return (
        f"{formula}; from microbatch {throughput.knee:,} on that line runs at {KNEE_SHARE:.0%} of its peak rate, "
        f"{rate(line.peak_rate)} samples/s."
    )


def _rate_table(throughput: Throughput) -> Table:
    columns = ("microbatch", "samples/s", "spread", "timings")
    return Table(
        caption=f"Rates of the {throughput.timed_by}",
        columns=columns,
        numeric=frozenset(columns),
        rows=[
            (
                count(each.microbatch),
                rate(each.samples_per_second),
                _spread(each),
                count(each.num_timings),
            )
            for each in throughput.rates
        ],
    )


def _spread(each: Rate) -> str:
    return "spread not known" if each.spread is None else f"±{each.spread:.0%}"
