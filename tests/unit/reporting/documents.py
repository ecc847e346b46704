"""Documents as brim writes them, with texts of users that are out for trouble."""

from brim.cases import Case
from brim.findings import Finding, Findings, Probe, Verdict
from brim.planning.answer import Wanted, answer_largest
from brim.planning.document import document

MIB = 2**20
TROUBLE = """<script>document.title = "broken"</script>&"'<img src=x onerror="document.title='broken'">"""


def probe(microbatch, verdict=Verdict.FITS, peak_mib=None, seconds=None, detail=None):
    return Probe(
        microbatch=microbatch,
        verdict=verdict,
        peak_bytes=None if peak_mib is None else peak_mib * MIB,
        step_seconds=seconds,
        steps=3,
        samples=3 * microbatch,
        detail=detail,
    )


def findings(name="train.py:Finetune", note=None):
    """Return two cases: one with a curve of step times and an OOM, one for which nothing fits."""
    found = Finding(
        case=Case({"seq_len": 512, "text": name}),
        microbatch=64,
        stopped_by="memory",
        confirmed=True,
        note=note,
        seconds=12.5,
        probes=(
            probe(8, peak_mib=200, seconds=0.08),
            probe(32, peak_mib=500, seconds=0.2),
            probe(80, Verdict.OOM, detail=f"RuntimeError: {name}"),
            probe(64, peak_mib=900, seconds=0.36),
            probe(64, peak_mib=905, seconds=0.36),
        ),
    )
    nothing = Finding(
        case=Case({"seq_len": 9000}),
        microbatch=None,
        stopped_by="memory",
        confirmed=False,
        probes=(probe(1, Verdict.OOM),),
    )
    return Findings(
        workload=name,
        kind="train",
        device_name="cpu",
        memory_bytes=1024 * MIB,
        fill=0.9,
        strategy="guided",
        findings=(found, nothing),
    ).to_dict()


def plan():
    return document(answer_largest(Wanted(effective=100), 12))


def prediction(name="train.py:Finetune"):
    def held(microbatch):
        return {"parameters": 64 * MIB, "gradients": 64 * MIB, "activations": microbatch * MIB, "inputs": 0}

    sizes = (1, 400, 800, 900)
    peaks = [
        {
            "microbatch": size,
            "allocated_bytes": sum(held(size).values()),
            "reserved_bytes": sum(held(size).values()),
            "device_bytes": sum(held(size).values()) + 96 * MIB,
            "breakdown": held(size),
        }
        for size in sizes
    ]
    steps = [("forward", 100), ("forward", 800), ("backward", 790), ("backward", 30), ("optimizer", 0)]
    return {
        "schema": "brim.prediction/1",
        "workload": name,
        "kind": "train",
        "case": {},
        "gpu": {"name": "tiny", "memory_bytes": 1024 * MIB},
        "largest": 800,
        "interval": [700, 850],
        "peaks": peaks,
        "modules": [{"name": name, "bytes": 700 * MIB}, {"name": "", "bytes": 100 * MIB}],
        "curve": peaks,
        "timeline": {
            "microbatch": 800,
            "points": [
                {"event": event, "phase": phase, "module": name, "bytes": held(size)}
                for event, (phase, size) in enumerate(steps)
            ],
        },
    }


def sweep(name="grid.sweep"):
    def trial(number, status="done", detail=None):
        return {
            "id": f"{number:016x}",
            "config": {"model.type": name, "hp.batch_size": 2**number},
            "status": status,
            "metrics": {"accuracy": number / 10} if status == "done" else {},
            "seconds": 4.2,
            "effective": {"hp.batch_size": 2} if number == 3 else {},
            "peak_bytes": 300 * MIB,
            "detail": detail,
        }

    trials = [trial(1), trial(2), trial(3), trial(4, "oom", name)]
    return {"schema": "brim.sweep/1", "directory": name, "num_trials": 4, "trials": trials}
