"""What the rows of a set of `published.py` add up to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from published_sets import PublishedSet

Row = dict[str, Any]
UNDER = -0.05
FAMILIES = ("cnn", "transformer")


def summarize(chosen: PublishedSet, results: Sequence[Row]) -> Row:
    """Return the errors of the phantom, and of the trace and others beside it."""
    done = [result for result in results if "problem" not in result]
    summary: Row = {"num_rows": len(results), "num_failed": len(results) - len(done)}
    summary["torch"] = sorted({result["torch"] for result in done})
    brackets = [result for result in done if "fits_batch" in result]
    if brackets:
        return summary | _summarize_brackets(brackets)
    pairs = [(result, measured) for result in done if (measured := chosen.measured(result["row"])) is not None]
    phantom = [_error(result[chosen.compared], measured) for result, measured in pairs]
    summary |= {"phantom": _errors(phantom)}
    if refused := [result for result in done if chosen.measured(result["row"]) is None]:
        summary["oom"] = {"num_rows": len(refused), "num_right": sum(not result["fits"] for result in refused)}
    families = {family: [pair for pair in pairs if pair[0]["row"].get("family") == family] for family in FAMILIES}
    return summary | {family: _summarize_family(chosen, of) for family, of in families.items() if of}


def _summarize_family(chosen: PublishedSet, pairs: Sequence[tuple[Row, float]]) -> Row:
    """Return the errors of the phantom, and of the trace on the same rows where it ran on all of them.

    A phantom has no workspaces of cuDNN. The trace has a term for them: it is taken from the trace, and added to the
    phantom, so that both are there with it and without. Half of what the trace knows of them was read off rows of
    this very set (`tracing/cudnn.py`): how much the term explains is no test of it.
    """
    summary = {"phantom": _errors([_error(result[chosen.compared], measured) for result, measured in pairs])}
    if any("reserved_bytes" not in (result["trace"] or {}) for result, _ in pairs):
        return summary
    summary["trace"] = _errors([_error(result["trace"]["reserved_bytes"], measured) for result, measured in pairs])
    terms = [result["trace"]["reserved_bytes"] - result["trace"]["reserved_without_cudnn_bytes"] for result, _ in pairs]
    if not any(terms):
        return summary
    alone = [_error(result["reserved_bytes"], measured) for result, measured in pairs]
    joined = [_error(result["reserved_bytes"] + term, of) for (result, of), term in zip(pairs, terms, strict=True)]
    bare = [_error(result["trace"]["reserved_without_cudnn_bytes"], measured) for result, measured in pairs]
    return summary | {
        "phantom_with_cudnn_term": _errors(joined),
        "trace_without_cudnn_term": _errors(bare),
        "phantom_where_no_term": _errors([error for error, term in zip(alone, terms, strict=True) if not term]),
        "cudnn_term": {
            "num_rows": sum(term > 0 for term in terms),
            "largest_share_of_memory": round(max(term / of for (_, of), term in zip(pairs, terms, strict=True)), 3),
            "share_of_phantom_error": round(1 - sum(map(abs, joined)) / sum(map(abs, alone)), 3),
        },
    }


def _summarize_brackets(brackets: Sequence[Row]) -> Row:
    fitted = [result["fits_batch"]["fits"] for result in brackets]
    closed = [result for result in brackets if "fails_batch" in result]
    inside = [result["fits_batch"]["fits"] and not result["fails_batch"]["fits"] for result in closed]
    return {
        "num_bracketed": len(closed),
        "share_inside": round(sum(inside) / max(1, len(inside)), 3),
        "num_too_small": fitted.count(False),
        "num_too_large": sum(result["fails_batch"]["fits"] for result in closed),
    }


def _error(predicted: float, measured: float) -> float:
    return predicted / measured - 1


def _errors(errors: Sequence[float]) -> Row:
    return {
        "num_rows": len(errors),
        "median_error": round(statistics.median(map(abs, errors)), 5) if errors else None,
        "worst_error": round(max(map(abs, errors), default=0), 5),
        "mean_signed_error": round(statistics.fmean(errors), 5) if errors else None,
        "num_under_by_5_percent": sum(error < UNDER for error in errors),
    }


def headline(summary: Row) -> str:
    """Return the last line of a run."""
    if "num_bracketed" in summary:
        share, count = summary["share_inside"], summary["num_bracketed"]
        return f"{share:.1%} of {count} brackets met, {summary['num_too_large']} answers too large"
    told = summary["phantom"]
    under = told["num_under_by_5_percent"]
    return f"median error {told['median_error'] or 0:.2%} on {told['num_rows']} rows, {under} under by more than 5%"
