"""Whether brim's budgets for lengths between the measured ones hold: against predictions, and in real epochs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import brim
from brim.planning.length_budget import MARGIN, Budget, make_budget

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parent / "examples" / "finetune.py:Finetune"
GPU = "rtx-3090"
# With attention that does not keep its scores, and with one that does.
WORKLOADS = {"fused": str(EXAMPLE), "unfused": f"{HERE}/sequence.py:Unfused"}
MEASURED = (128, 256, 512, 1024, 2048)
BETWEEN = (129, 191, 192, 255, 300, 384, 500, 511, 640, 768, 1000, 1023, 1300, 1536, 1800, 2047)
# The example's texts have up to 256 tokens.
CPU_MEASURED = (64, 128, 256)
CPU_MEMORY = "1GiB"
SEEDS = (0, 1, 2)


def check_budgets(lengths: list[int]) -> dict[str, Any]:
    """Compare what budgets allow with what is predicted, and count the batches that they make of the lengths."""
    workloads = {name: _check_budgets(address, lengths) for name, address in WORKLOADS.items()}
    return {"gpu": GPU, "measured": MEASURED, "margin": MARGIN, "workloads": workloads}


def _check_budgets(address: str, lengths: list[int]) -> dict[str, Any]:
    predicted = {
        length: brim.predict(address, gpu=GPU, case={"seq_len": length}).largest
        for length in sorted((*MEASURED, *BETWEEN))
    }
    largest = {length: predicted[length] for length in MEASURED}
    # The most tokens that fit at every measured length, with the same margin.
    max_tokens = int(min(length * size for length, size in largest.items()) * (1 - MARGIN))
    tokens = brim.TokenBudgetSampler(lengths, max_tokens=max_tokens)
    budgets: dict[str, Any] = {
        f"{max_tokens} tokens": {
            "most_per_predicted": _most(make_budget(largest=None, max_tokens=max_tokens), predicted),
            "num_batches": len(tokens),
        }
    }
    for name, interpolate in (("next longer", False), ("interpolated", True)):
        bare = make_budget(largest=largest, max_tokens=None, margin=0.0, interpolate=interpolate)
        kept = make_budget(largest=largest, max_tokens=None, interpolate=interpolate)
        sampler = brim.TokenBudgetSampler(lengths, largest=largest, interpolate=interpolate)
        budgets[name] = {
            "most_per_predicted_without_margin": _most(bare, predicted),
            "most_per_predicted": _most(kept, predicted),
            "num_batches": len(sampler),
        }
    return {"predicted": predicted, "budgets": budgets}


def check_epochs() -> dict[str, Any]:
    """Find the largest microbatch of three lengths on the CPU, then train epochs under the same limit."""
    cases = [{"seq_len": length} for length in CPU_MEASURED]
    findings = brim.find(str(EXAMPLE), cases=cases, device="cpu", memory=CPU_MEMORY, cache=False)
    largest = {int(finding.case["seq_len"]): finding.microbatch for finding in findings}
    settings = [
        {"margin": margin, "interpolate": interpolate, "seed": seed}
        for margin in (0.0, MARGIN)
        for interpolate in (False, True)
        for seed in SEEDS
    ]
    runs = [
        {**each, **_run_epoch({**each, "limit_bytes": findings.limit_bytes, "largest": largest})} for each in settings
    ]
    return {"limit_bytes": findings.limit_bytes, "largest": largest, "runs": runs}


def _run_epoch(options: dict[str, Any]) -> dict[str, int]:
    command = [sys.executable, "epoch.py", json.dumps(options)]
    done = subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, text=True, check=True)
    outcome: dict[str, int] = json.loads(done.stdout)
    return outcome


def _most(budget: Budget, predicted: dict[int, int]) -> float:
    return round(max(budget.largest_at(length) / size for length, size in predicted.items()), 3)
