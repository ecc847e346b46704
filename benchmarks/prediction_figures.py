"""What the rows of a set of `prediction.py` add up to."""

from __future__ import annotations

import math
import statistics
from typing import Any

from prediction_sets import ESTIMATORS


def summarize(name: str, results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures that the rows add up to."""
    done = [result for result in results if "problem" not in result]
    summary: dict[str, Any] = {"num_rows": len(results), "num_failed": len(results) - len(done)}
    if not done:
        return summary
    if name == "large":
        return summary | {key: value for key, value in done[0].items() if key != "row"}
    if name == "timm":
        return summary | _summarize_timm(done)
    if name == "time":
        return summary | _summarize_time(done)
    if name == "lengths":
        return summary | _summarize_lengths(done)
    if name == "tokens":
        return summary | _summarize_tokens(done)
    errors = [abs(result["error"]) for result in done]
    summary |= {"median_error": statistics.median(errors), "worst_error": max(errors)}
    if name == "xmem":
        summary["share_under_by_5_percent"] = sum(result["error"] < -0.05 for result in done) / len(done)
        for family in ("cnn", "transformer"):
            of_family = [result for result in done if result["row"]["family"] == family]
            summary[f"median_error_of_{family}"] = _median([abs(result["error"]) for result in of_family])
            summary[f"num_under_by_5_percent_of_{family}"] = sum(result["error"] < -0.05 for result in of_family)
        for peer in ESTIMATORS:
            summary[f"median_error_{peer}"] = _median(
                [abs(result["peers"][peer]) for result in done if peer in result["peers"]]
            )
    if name == "cpu":
        summary["num_models"] = len({result["row"]["model"] for result in done})
        summary["largest_scratch_share"] = max(result["scratch_bytes"] / result["tensor_bytes"] for result in done)
    if name == "bert":
        summary["rows"] = {result["row"]["name"]: result["predicted_mib"] for result in done}
    return summary


def _summarize_timm(done: list[dict[str, Any]]) -> dict[str, Any]:
    bracketed = [result for result in done if result["row"]["fails_batch"]]
    return {
        "num_bracketed": len(bracketed),
        "share_inside": _share([result["inside"] for result in bracketed]),
        "share_interval_meets": _share([result["interval_meets"] for result in bracketed]),
    }


def _median(values: list[float]) -> float | None:
    """Return the median; None of nothing, as in a small sample."""
    return statistics.median(values) if values else None


def _share(flags: list[bool]) -> float | None:
    """Return how many of all are true; None of nothing."""
    return sum(flags) / len(flags) if flags else None


def _summarize_tokens(done: list[dict[str, Any]]) -> dict[str, Any]:
    """Return, by the stride, how much larger the answer is than with every token traced; and what time is saved."""
    by_events = {result["row"]["most_events"]: result for result in done}
    whole = by_events.pop(None)
    return {
        "largest": whole["largest"],
        "too_large_by_stride": {
            each["token_stride"]: round(each["largest"] / whole["largest"] - 1, 4) for each in by_events.values()
        },
        "traces_faster": round(whole["two_traces_cpu_seconds"] / by_events[120_000]["two_traces_cpu_seconds"], 1),
        "all_faster": round(whole["cpu_seconds"] / by_events[120_000]["cpu_seconds"], 1),
    }


def _summarize_lengths(done: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the error of every run by the length of its first texts."""
    runs: dict[str, dict[int, float]] = {}
    for result in sorted(done, key=lambda result: -result["row"]["first_tokens"]):
        row = result["row"]
        run = f"{row['model']}, {row['optimizer']}, batch {row['microbatch']}"
        runs.setdefault(run, {})[row["first_tokens"]] = round(result["error"], 3)
    return {"errors_by_first_tokens": runs}


def _summarize_time(done: list[dict[str, Any]]) -> dict[str, Any]:
    per_operation = [result["trace_cpu_seconds"] / result["num_operations"] for result in done]
    sizes = [float(result["num_operations"]) for result in done]
    seconds = [float(result["trace_cpu_seconds"]) for result in done]
    medians = {
        "median_trace_cpu_seconds": statistics.median(seconds),
        "median_microseconds_per_operation": statistics.median(per_operation) * 1e6,
    }
    if len(set(sizes)) == 1 or len(set(seconds)) == 1:
        return medians  # no line goes through one point
    return medians | {
        "correlation_of_seconds_with_operations": statistics.correlation(sizes, seconds),
        # 1 is linear growth, 2 would be quadratic.
        "exponent_of_seconds_in_operations": statistics.linear_regression(
            [math.log(size) for size in sizes], [math.log(each) for each in seconds]
        ).slope,
    }
