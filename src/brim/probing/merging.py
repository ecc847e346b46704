"""One outcome from those of all ranks and nodes: the worst decides, and of several failures the first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from brim.findings import Verdict
from brim.probing.outcome import Outcome

# How collectives fail on a rank whose peer has died or left: what happened there is the reason, not this.
PEER_TEXTS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "Socket closed",
    "remote process exited",
    "Application timeout caused pair closure",
    "Timed out waiting",
    "failed to recv, got 0 bytes",
)


_Size = TypeVar("_Size", int, str)


def is_from_peer(detail: str) -> bool:
    """Return whether a failure only says that another rank is gone.

    >>> is_from_peer("RuntimeError: [gloo/transport/tcp/pair.cc:525] Connection closed by peer [127.0.0.1]:57110")
    True
    """
    return any(text in detail for text in PEER_TEXTS)


def merge_outcomes(
    outcomes: Sequence[Mapping[str, Any]], *, num_ranks: int, died: str | None, called: str = "rank"
) -> dict[str, Any]:
    """Return the outcome of a job from those that its ranks wrote.

    Args:
        outcomes: What `run_trial` returned on the ranks that got so far, with their `rank`,
            their `local_rank` and the `time` they ended.
        num_ranks: How many ranks there are on this node.
        died: How the first rank that failed ended, where a signal did it.
        called: What a rank is called that wrote nothing: only its number on this node is known.

    >>> fits = {"verdict": "fits", "phase": "step", "peak_bytes": 7, "step_seconds": 0.5, "samples": 6, "time": 1}
    >>> oom = {"verdict": "oom", "phase": "step", "detail": "MemoryError: no message", "time": 2}
    >>> merge_outcomes([{**fits, "rank": 0}, {**oom, "rank": 1}], num_ranks=2, died=None)["detail"]
    'rank 1: MemoryError: no message'
    """
    failed = [outcome for outcome in outcomes if outcome["verdict"] != Verdict.FITS.value]
    causes = [outcome for outcome in failed if not is_from_peer(outcome["detail"])]
    if causes:
        first = min(causes, key=lambda outcome: float(outcome["time"]))
        return {**first, "detail": f"rank {first['rank']}: {first['detail']}"}
    if failed or len(outcomes) < num_ranks:
        silent = sorted(set(range(num_ranks)) - {outcome["local_rank"] for outcome in outcomes})
        who = f"of {called} {', '.join(map(str, silent))} " if silent else ""
        return {"verdict": Verdict.UNCLEAR.value, "phase": "step", "detail": f"{who}{died or 'ended without a result'}"}
    fullest = max(outcomes, key=lambda outcome: int(outcome["peak_bytes"]))
    slowest = max(outcomes, key=lambda outcome: float(outcome["step_seconds"]))
    return {
        **fullest,
        "step_seconds": slowest["step_seconds"],
        "timings": slowest.get("timings", ()),
        "laps": slowest_laps([outcome.get("laps", {}) for outcome in outcomes]),
        "samples": _fewest(outcome["samples"] for outcome in outcomes),
    }


# From the least to the most that a node's verdict says: of one whose peers are gone, or that was ended because another
# failed, no more is known than that it did not come to its end.
_SAYING = (Verdict.FITS, Verdict.UNCLEAR, Verdict.OOM, Verdict.ERROR)


def merge_nodes(outcomes: Sequence[Outcome], *, order: Sequence[int]) -> Outcome:
    """Return the outcome of a probe from those of the nodes that shared it.

    Args:
        outcomes: What each node saw of its own ranks.
        order: For each node, how many others had failed before it.
    """
    worst = max((outcome.probe.verdict for outcome in outcomes), key=_SAYING.index)
    if worst is not Verdict.FITS:
        alike = [node for node, outcome in enumerate(outcomes) if outcome.probe.verdict is worst]
        return outcomes[min(alike, key=lambda node: order[node])]
    probes = [outcome.probe for outcome in outcomes]
    fullest = max(probes, key=lambda probe: probe.peak_bytes or 0)
    slowest = max(probes, key=lambda probe: probe.step_seconds or 0.0)
    fewest = _fewest(probe.samples for probe in probes)
    laps = slowest_laps([probe.laps for probe in probes])
    timed = replace(fullest, step_seconds=slowest.step_seconds, timings=slowest.timings, laps=laps)
    return replace(outcomes[0], probe=replace(timed, samples=fewest))


def _fewest(samples: Iterable[int | None]) -> int | None:
    """Return the fewest samples that anybody saw; None where nobody saw any."""
    return min((num_samples for num_samples in samples if num_samples is not None), default=None)


def slowest_laps(laps: Sequence[Mapping[_Size, Sequence[float]]]) -> dict[_Size, tuple[float, ...]]:
    """Return of every size that ran everywhere what the slowest took in each round.

    >>> slowest_laps([{4: [1.0, 2.0], 1: [0.5, 0.5]}, {4: [2.0, 1.0]}])
    {4: (2.0, 2.0)}
    """
    shared = [size for size in laps[0] if all(size in each for each in laps)]
    return {size: tuple(map(max, zip(*(each[size] for each in laps), strict=True))) for size in shared}
