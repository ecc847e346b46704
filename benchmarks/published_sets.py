"""The sets of `published.py`: their rows, the card of each, where their libraries lie, and what was measured."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from brim.devices.catalog import Gpu, find_gpu
from brim.devices.context import context_bytes

DATA = Path(__file__).resolve().parent / "data"
Row = dict[str, Any]
GIB = 2**30
_XMEM_CARDS = {"RTX 3060": "rtx-3060", "RTX 4060": "rtx-4060"}
_QWEN_CARDS = {
    "rtx-pro-5000-72gb": Gpu(name="rtx-pro-5000-72gb", memory_bytes=72 * GIB, capability=(12, 0)),
    "rtx-3090-ti": find_gpu("rtx-3090-ti"),
}
# What timm's tables were made with: all kernels were loaded at once.
_TIMM_CUDA = (11, 3)
_XMEM_CUDA = (12, 4)
# The row to which the length of texts was fitted (`published_models.py`): no test of it.
PEFT_FITTED = "lora--llama-3.2-3B-rank32"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSet:
    """One set of rows.

    Attributes:
        data: The file of its rows.
        gpu: Returns the card of a row.
        measured: Returns the bytes that were measured of a row; None where only a verdict was.
        compared: What of the phantom is compared with them.
        sites: Folders below the environment: first the one with torch, then those of libraries beside it.
        context: Returns what the driver keeps on a card: no tensor can have that. 0 where the card was not filled.
        keeps: Whether a row can be run.
        has_trace: Whether the trace can run the set.
    """

    data: Path
    gpu: Callable[[Row], Gpu]
    measured: Callable[[Row], float | None]
    compared: str
    sites: tuple[str, ...]
    context: Callable[[Gpu], int] = lambda gpu: 0
    keeps: Callable[[Row], bool] = lambda row: True
    has_trace: bool = False

    def rows(self, path: Path | None) -> Iterator[Row]:
        """Yield the rows of a file, of its own where none is named."""
        file = path or self.data
        with file.open() as lines:
            yield from filter(self.keeps, map(json.loads, lines) if file.suffix == ".jsonl" else csv.DictReader(lines))


def _xmem_gpu(row: Row) -> Gpu:
    return replace(find_gpu(_XMEM_CARDS[row["gpu"]]), memory_bytes=int(row["gpu_total_bytes"]))


def _litgpt_runs(row: Row) -> bool:
    return row["quantization"] == "None" and row["gpus"].startswith("1 x")


def _litgpt_measured(row: Row) -> float | None:
    return None if row["memory"] == "OOM" else float(row["memory"].split()[0]) * 1e9


def _peft_runs(row: Row) -> bool:
    # FRoD first takes weights apart on the host, for ten minutes.
    is_tested = row["name"] != PEFT_FITTED and not row["name"].startswith("frod")
    return row["suite"] == "MetaMathQA" and (is_tested or "tokens" in row)


SETS = {
    "xmem": PublishedSet(
        data=DATA / "xmem-runs.csv",
        gpu=_xmem_gpu,
        measured=lambda row: float(row["measured_bytes"]),
        compared="reserved_bytes",
        sites=("published/torch-2.6", "published/transformers-4.50", "published/timm"),
        context=lambda gpu: context_bytes(gpu, _XMEM_CUDA),
        keeps=lambda row: row["oom"] != "true" and row["gpu"] in _XMEM_CARDS,
        has_trace=True,
    ),
    "timm": PublishedSet(
        data=DATA / "timm-rtx3090-train.csv",
        gpu=lambda row: find_gpu("rtx-3090"),
        measured=lambda row: None,
        compared="reserved_bytes",
        sites=("published/torch-2.6", "published/timm"),
        context=lambda gpu: context_bytes(gpu, _TIMM_CUDA),
    ),
    "qwen-sft": PublishedSet(
        data=DATA / "qwen-sft.csv",
        gpu=lambda row: _QWEN_CARDS[row["gpu"]],
        measured=lambda row: float(row["allocated_peak_gib"]) * GIB,
        compared="allocated_bytes",
        sites=("published/torch-2.8", "published/transformers-5.12"),
        keeps=lambda row: row["ranks"] == "1" and not row["method"].startswith("nf4"),
    ),
    "litgpt": PublishedSet(
        data=DATA / "litgpt-a100.csv",
        gpu=lambda row: find_gpu("a100-40gb"),
        measured=_litgpt_measured,
        compared="allocated_bytes",
        sites=("published/torch-2.4", "published/lit-gpt"),
        keeps=_litgpt_runs,
    ),
    "peft": PublishedSet(
        data=DATA / "peft-l40s.jsonl",
        gpu=lambda row: find_gpu("l40s"),
        measured=lambda row: float(row["reserved_max_bytes"]),
        compared="reserved_bytes",
        sites=("cuda",),
        keeps=_peft_runs,
    ),
}
