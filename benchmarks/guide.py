"""The pictures, the numbers and the shown output of docs/guide.md.

Run with `python benchmarks/guide.py`: about three minutes on two cores, no GPU. Needs `brim[report]`; writes
docs/images/guide-*.svg and benchmarks/results/guide.json.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import brim
from brim.findings import Findings
from brim.reporting.page.charts import bars, dots
from brim.reporting.page.findings_section import findings_section
from brim.reporting.page.prediction_section import prediction_section
from brim.reporting.page.svg import draw

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "guide.json"
STYLE = (ROOT / "src/brim/reporting/page/page.css").read_text()

JOB = "examples/finetune.py:Finetune"
FIND = f"brim find {JOB} --case seq_len=128,512 --memory 1GiB"
RATES = f"brim find {JOB} --case seq_len=16 --memory 1GiB --strategy doubling --cap 64 --steps 30"
PREDICT = f"brim predict {JOB} --gpu rtx-3090 --case seq_len=512"
MODEL = "brim plan --model 8b --gpu a100-80gb --effective 64"
SHOWN = (
    "brim plan --effective 256 --ranks 4 --largest 12",
    f"brim predict {JOB} --gpu rtx-3090 --case seq_len=128,512,2048",
    f"brim plan --workload {JOB} --case seq_len=512 --memory 2GB --effective 256 --ladder",
    MODEL,
    "brim plan --effective 256 --largest 64 --lr 3e-4@64",
    "brim plan --microbatch 4 --accumulation 16 --largest 64 --symptom slow",
    "python examples/accumulation.py",
)

# What readers see on a terminal: tables with their rules, without colours.
ON_A_TERMINAL = {"TTY_COMPATIBLE": "1", "TERM": "dumb", "COLUMNS": "140", "LINES": "50"}
WIDTH_PIXELS = 880
NUM_SAMPLES, NUM_DRAWS, NUM_TEXTS = 4096, 200, 2000
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def run(command: str, **variables: str) -> tuple[str, str]:
    """Run a command at the project's root and return what it wrote: standard output, standard error."""
    print(f"$ {command}", flush=True)
    _, *arguments = shlex.split(command.replace("brim ", "python -m brim ", 1))
    with tempfile.TemporaryDirectory() as cache:
        told = {**os.environ, "BRIM_CACHE_DIR": cache, **variables}
        done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=told, capture_output=True, text=True)
    if done.returncode not in (0, 3):  # 3 says that nothing fits, which the guide shows as well
        raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stderr}")
    return re.sub(r" +\n", "\n", done.stdout), done.stderr


def measure_noise() -> tuple[dict[int, float], float]:
    """Return the noise of a batch's gradient relative to that of all samples, by batch, and that of one sample."""
    torch.manual_seed(0)
    x = torch.randn(NUM_SAMPLES, 32)
    y = (x @ torch.randn(32, 10)).argmax(1)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))

    def gradient(chosen: torch.Tensor) -> torch.Tensor:
        parts = torch.autograd.grad(F.cross_entropy(model(x[chosen]), y[chosen]), list(model.parameters()))
        return torch.cat([part.flatten() for part in parts])

    whole = gradient(torch.arange(NUM_SAMPLES))

    def distance(batches: Sequence[torch.Tensor]) -> float:
        squares = torch.stack([(gradient(batch) - whole).square().sum() for batch in batches])
        return float(squares.mean().sqrt() / whole.norm())

    measured = {size: distance(torch.randint(0, NUM_SAMPLES, (NUM_DRAWS, size))) for size in BATCHES}
    return measured, distance(torch.arange(NUM_SAMPLES).split(1))


def compare_padding(found: Findings) -> dict[str, Any]:
    """Return batches and padding of an epoch: at the size that always fits, and by length."""
    draw_length = random.Random(0)
    lengths = [min(512, round(draw_length.lognormvariate(4.5, 0.8)) + 1) for _ in range(NUM_TEXTS)]
    fixed = found.microbatch or 1
    batches = [lengths[start : start + fixed] for start in range(0, len(lengths), fixed)]
    padded = sum(len(batch) * max(batch) for batch in batches)
    sampler = brim.TokenBudgetSampler(lengths, largest=found)
    at_fixed = {"microbatch": fixed, "num_batches": len(batches), "text_share": sum(lengths) / padded}
    by_length = {"num_batches": len(sampler), "text_share": sampler.padding_efficiency}
    return {"mean_length": sum(lengths) / len(lengths), "fixed": at_fixed, "by_length": by_length}


def noise_chart(measured: Mapping[int, float], single: float) -> dict[str, Any]:
    """Return the measured noise as dots, and as a line the formula: that of one sample over the batch's root."""
    points = [{"x": size, "y": noise, "verdict": "fits", "tip": str(size)} for size, noise in measured.items()]
    curve = [{"x": size, "y": single / size**0.5} for size in range(1, BATCHES[-1] + 1)]
    scale = round(single**2)
    lines = [{"y": 1, "label": "as much noise as gradient", "is_right": True}, {"x": scale, "label": f"batch {scale}"}]
    x_title, y_title = "effective batch", "noise ÷ gradient"
    return dots(points, lines=lines, curve=curve, x_title=x_title, y_title=y_title, width=WIDTH_PIXELS)


def model_chart(held: Mapping[str, int]) -> dict[str, Any]:
    """Return what a model needs before any sample, and what each sample adds."""
    kinds = ("parameters", "gradients", "optimizer", "activations_sample", "logits_sample")
    sizes = {kind.replace("_sample", ", each sample"): held[f"{kind}_bytes"] / 1e9 for kind in kinds}
    rows = [{"label": kind, "x": size, "text": f"{size:.3g} GB", "tip": kind} for kind, size in sizes.items()]
    return bars(rows, x_title="memory, GB", width=WIDTH_PIXELS)


def write_picture(name: str, chart: Mapping[str, Any]) -> None:
    """Draw a chart on a ground of its own, in light colours, and in dark ones where the system is dark."""
    svg = str(draw({**chart, "width": WIDTH_PIXELS, "padding": 16, "background": "var(--paper)"}))
    rules = []
    for variable, light, dark in re.findall(r"--([\w-]+): (?:light-dark\()?(#\w+)(?:, (#\w+))?", STYLE):
        if dark and f"var(--{variable})" in svg:
            rules += [f'[{paint}="{light}"] {{ {paint}: {dark} }}' for paint in ("fill", "stroke")]
        svg = svg.replace(f"var(--{variable})", light)
    style = f"<style>@media (prefers-color-scheme: dark) {{ {' '.join(rules)} }}</style>"
    head, rest = svg.replace('font-family="inherit"', 'font-family="system-ui, sans-serif"').split(">", 1)
    (ROOT / "docs" / "images" / f"guide-{name}.svg").write_text(f"{head}>{style}{rest}\n")


def main() -> None:
    """Run everything, draw the pictures and write the numbers."""
    outputs = {command: run(command, **ON_A_TERMINAL)[0] for command in SHOWN}
    found, outputs[FIND] = run(f"{FIND} --json")
    commands = (RATES, PREDICT, MODEL)
    timed, predicted, planned = (json.loads(run(f"{each} --json", OMP_NUM_THREADS="1")[0]) for each in commands)
    rates = findings_section(timed).parts[0].charts[-1]
    in_memory, in_time, *_ = prediction_section(predicted).charts
    write_picture("memory", in_memory.wide)
    write_picture("step", in_time.wide)
    write_picture("rate", rates.wide)
    write_picture("model", model_chart(planned["model"]["held"]))
    measured, single = measure_noise()
    write_picture("noise", noise_chart(measured, single))
    results = {
        "outputs": outputs,
        "noise": {"by_batch": measured, "one_sample": single},
        "padding": compare_padding(Findings.from_dict(json.loads(found))),
        "rate": {"says": rates.summary, "findings": timed},
    }
    RESULTS.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
