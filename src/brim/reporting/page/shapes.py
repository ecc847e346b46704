"""The shapes of the documents that a report is made of: what its sections read, and of which type."""

from __future__ import annotations

from typing import Any

from brim.findings import Verdict
from brim.records import (
    AMOUNT,
    ANY,
    COUNT,
    FLAG,
    NUMBER,
    PLAIN,
    SIZE,
    TEXT,
    Each,
    Filled,
    Leaf,
    Maybe,
    is_finite,
    one_of,
)

_SHARE = Leaf("a number above 0 and at most 1", lambda value: is_finite(value) and 0 < value <= 1)
_ABOVE = Leaf("a number above 0", lambda value: is_finite(value) and value > 0)
_PAIR = Leaf(
    "a list of two whole numbers",
    lambda value: isinstance(value, list) and len(value) == 2 and all(map(COUNT.accepts, value)),
)

_PROBE = {
    "microbatch": SIZE,
    "verdict": one_of(*(verdict.value for verdict in Verdict)),
    "peak_bytes": Maybe(COUNT),
    "step_seconds": Maybe(AMOUNT),
    "steps?": COUNT,
    "samples?": Maybe(COUNT),
    "detail?": Maybe(TEXT),
    "timings?": [AMOUNT],
    "laps?": Each([AMOUNT]),
    "calls?": Each(COUNT),
    "memory?": Each(COUNT),
}
_THROUGHPUT = {
    "rates": Filled({"microbatch": SIZE, "samples_per_second": _ABOVE, "spread": Maybe(AMOUNT), "timings": COUNT}),
    "fixed_seconds": Maybe(NUMBER),
    "sample_seconds": Maybe(_ABOVE),
}
_FINDING = {
    "case": Each(PLAIN),
    "microbatch": Maybe(SIZE),
    "stopped_by": TEXT,
    "confirmed": FLAG,
    "predicted?": Maybe(Each(COUNT)),
    "throughput?": Maybe(_THROUGHPUT),
    "note?": Maybe(TEXT),
    "seconds?": AMOUNT,
    "probes": [_PROBE],
}
_FINDINGS = {
    "workload": TEXT,
    "kind": TEXT,
    "ranks": SIZE,
    "device": {"name": TEXT, "memory_bytes": SIZE, "fill": _SHARE},
    "strategy": TEXT,
    "findings": [_FINDING],
    "error?": {"message": TEXT},
}

_GPU = {"name": TEXT, "memory_bytes": SIZE}
_ON_CURVE = {"microbatch": SIZE, "device_bytes": COUNT, "breakdown": Each(COUNT)}
_PREDICTION = {
    "workload": TEXT,
    "kind": TEXT,
    "case": Each(PLAIN),
    "gpu": _GPU,
    "fill?": _SHARE,
    "largest": COUNT,
    "interval": _PAIR,
    "peaks": Filled({**_ON_CURVE, "allocated_bytes": COUNT, "reserved_bytes": COUNT}),
    "modules": [{"name": TEXT, "bytes": COUNT}],
    "curve?": [_ON_CURVE],
    "timeline?": Maybe(
        {"microbatch": SIZE, "points": Filled({"event": COUNT, "phase": TEXT, "module": TEXT, "bytes": Each(COUNT)})}
    ),
}

_RUNG = {
    "title": TEXT,
    "skipped": Maybe(TEXT),
    "saved_bytes": NUMBER,
    "largest": COUNT,
    "cost": TEXT,
    "basis": TEXT,
}
_PLAN = {
    "effective": Maybe(SIZE),
    "ranks": SIZE,
    "microbatch": Maybe(SIZE),
    "accumulation": Maybe(SIZE),
    "largest?": Maybe(COUNT),
    "notes": [TEXT],
    "takes?": [TEXT],
    "advice?": [{"topic": TEXT, "text": TEXT}],
    "accumulations?": Each(SIZE),
    "measurement?": Maybe({"profiles": [{"name": TEXT, "batch": COUNT, "line_bytes": AMOUNT, "worst_bytes": AMOUNT}]}),
    "model?": Maybe({"name": TEXT, "gpu": _GPU}),
    "traced?": Maybe({"workload": TEXT, "gpu": _GPU}),
    "ladder?": [_RUNG],
    "learning_rate?": Maybe({"ratio": NUMBER, "learning_rate": NUMBER, "beta2": Maybe(NUMBER), "reasons": [TEXT]}),
    "paste?": Each({"text": TEXT, "note": Maybe(TEXT)}),
}

_TRIAL = {
    "id": TEXT,
    "config": Each(ANY),
    "status": TEXT,
    "metrics": Each(ANY),
    "seconds": Maybe(AMOUNT),
    "effective?": Each(ANY),
    "peak_bytes?": Maybe(COUNT),
    "detail?": Maybe(TEXT),
}
_SWEEP = {"directory": TEXT, "num_trials": COUNT, "trials": [_TRIAL]}

SHAPES: dict[str, Any] = {
    "brim.findings/1": _FINDINGS,
    "brim.prediction/1": _PREDICTION,
    "brim.plan/1": _PLAN,
    "brim.sweep/1": _SWEEP,
}
