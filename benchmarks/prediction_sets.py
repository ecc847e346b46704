"""The sets of `prediction.py`: which rows each has, and what is predicted and measured of one."""

from __future__ import annotations

import csv
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

if TYPE_CHECKING:
    from brim.devices.catalog import Gpu
    from brim.tracing.sizes import TracedSizes

DATA = Path(__file__).resolve().parent / "data"
MIB = 2**20
# Other estimators, of which the data has the figures.
ESTIMATORS = ("xmem", "dnnmem", "schedtune", "llmem")
ZOO_SIZES = (2, 4, 8)
TIMM_CAPABILITY = (8, 6)
# Of so many rows of timm's models, one is timed.
TIMED_STRIDE = 12
XMEM_CAPABILITIES = {"RTX 3060": (8, 6), "RTX 4060": (8, 9)}
# Runs of language models that needed more than texts of equal length explain, and how long the first batch's texts may
# have been.
LENGTHS_RUNS = (
    ("distilbert/distilgpt2", "AdamW", "10", ""),
    ("EleutherAI/gpt-neo-125M", "Adam", "11", "1"),
    ("EleutherAI/gpt-neo-125M", "AdamW", "20", "0"),
    ("EleutherAI/gpt-neo-125M", "AdamW", "25", ""),
)
FIRST_TOKENS = (128, 127, 120, 110, 90, 60)
# The third step has the outputs of a full batch beside its own.
LENGTHS_STEPS = 3
# How a generation is entered: every token traced; all that follow from the first ones; as many of these as have so many
# events, 420 a token.
TOKENS_ROWS = (None, 120_000, 53_760, 26_880, 13_440, 6_720)
# Batch, settings and the driver's "used" in MiB with 1,343 for the context. Source: transformers' guide to training on
# one GPU.
BERT_ROWS: tuple[tuple[str, int, dict[str, Any], int], ...] = (
    ("batch 4", 4, {}, 14949),
    ("batch 1 × 4", 1, {"accumulation": 4}, 8681),
    ("batch 1 × 4, checkpointing", 1, {"accumulation": 4, "checkpointing": True}, 6775),
    ("batch 4, fp16", 4, {"half": True}, 13939),
    ("batch 1 × 4, checkpointing, fp16", 1, {"accumulation": 4, "checkpointing": True, "half": True}, 7275),
    ("batch 4, Adafactor", 4, {"optimizer": "adafactor"}, 12295),
    ("batch 4, 8-bit Adam", 4, {"optimizer": "adam8bit"}, 13085),
)
BERT_DEFAULTS = {"accumulation": 1, "checkpointing": False, "half": False, "optimizer": "adamw"}


def cpu_row(row: dict[str, Any]) -> dict[str, Any]:
    """Trace one job of the zoo and run it for real."""
    from allocator_peak import measure
    from brim.cases import Case
    from brim.tracing import trace
    from zoo import Zoo

    case = Case({"model": row["model"], "optimizer": row["optimizer"]})
    real = measure(Zoo, case, row["microbatch"])
    traced_bytes = trace(Zoo, case, row["microbatch"]).peak_bytes
    return {
        "traced_bytes": traced_bytes,
        "tensor_bytes": real.tensor_bytes,
        "scratch_bytes": real.peak_bytes - real.tensor_bytes,
        "error": traced_bytes / real.tensor_bytes - 1,
    }


def timm_row(row: dict[str, Any]) -> dict[str, Any]:
    """Predict the largest batch of one model."""
    from brim.cases import Case
    from brim.devices.catalog import find_gpu
    from brim.tracing.prediction import Prediction
    from brim.tracing.runtime import Runtime
    from brim.tracing.sizes import TracedSizes
    from timm_workload import TimmTrain

    gpu = find_gpu("rtx-3090")
    case = Case({"model": row["model"], "layout": row["layout"], "image_size": int(row["image_size"])})
    traced = TracedSizes(TimmTrain, case, capability=gpu.capability)
    prediction = Prediction(traced, gpu=gpu, runtime=Runtime(cuda=(11, 3)), cap=1024)
    fails = int(row["fails_batch"]) if row["fails_batch"] else None
    inside = int(row["fits_batch"]) <= prediction.largest and (fails is None or prediction.largest < fails)
    low, high = prediction.interval
    return {
        "largest": prediction.largest,
        "interval": prediction.interval,
        "inside": inside,
        "interval_meets": high >= int(row["fits_batch"]) and (fails is None or low < fails),
    }


def time_row(row: dict[str, Any]) -> dict[str, Any]:
    """Count what the two traces of one model cost."""
    from brim.cases import Case
    from brim.tracing.sizes import TracedSizes
    from timm_workload import TimmTrain

    case = Case({"model": row["model"], "layout": row["layout"], "image_size": int(row["image_size"])})
    started = time.process_time()
    traced = TracedSizes(TimmTrain, case, capability=TIMM_CAPABILITY)
    seconds = time.process_time() - started
    return {"trace_cpu_seconds": round(seconds, 2), "num_operations": 2 * traced.num_operations}


def xmem_row(row: dict[str, Any]) -> dict[str, Any]:
    """Predict the peak of one training run."""
    from brim.tracing.prediction import Prediction
    from brim.tracing.runtime import Runtime

    gpu = _xmem_gpu(row["gpu"], int(row["gpu_total_bytes"]))
    job = (row["family"], row["model"], row["optimizer"], int(row["zero_grad_mode"] or 0))
    traced = _xmem_sizes(*job, gpu.capability)
    prediction = Prediction(traced, gpu=gpu, runtime=Runtime(cuda=(12, 4)))
    # What was measured begins after the context was made.
    predicted = prediction.peak(int(row["batch_size"])).reserved_bytes
    measured = int(row["measured_bytes"])
    peers = {name: float(row[f"{name}_bytes"]) / measured - 1 for name in ESTIMATORS if row[f"{name}_bytes"]}
    return {"predicted_bytes": predicted, "measured_bytes": measured, "error": predicted / measured - 1, "peers": peers}


def lengths_row(row: dict[str, Any]) -> dict[str, Any]:
    """Replay one training run whose first batch has shorter texts."""
    from brim.cases import Case
    from brim.tracing import trace
    from brim.tracing.allocator import replay
    from brim.tracing.overheads import cublas_bytes
    from xmem_workloads import Transformer

    case = Case({name: row[name] for name in ("model", "optimizer", "zero_grad", "first_tokens")})
    gpu = _xmem_gpu(row["gpu"], row["gpu_bytes"])
    record = trace(Transformer, case, row["microbatch"], steps=LENGTHS_STEPS, capability=gpu.capability).record
    workspaces = cublas_bytes(gpu, trains=True)
    predicted = replay(record.events, workspaces=workspaces, capacity_bytes=gpu.memory_bytes).reserved_bytes
    return {"predicted_bytes": predicted, "error": predicted / row["measured_bytes"] - 1}


def _xmem_gpu(name: str, memory_bytes: int) -> Gpu:
    from brim.devices.catalog import Gpu

    return Gpu(name=name, memory_bytes=memory_bytes, capability=XMEM_CAPABILITIES[name])


@functools.cache
def _xmem_sizes(family: str, model: str, optimizer: str, zero_grad: int, capability: tuple[int, int]) -> TracedSizes:
    """Trace a job once for all of its rows, which differ in the batch and the card."""
    from brim.cases import Case
    from brim.tracing.sizes import TracedSizes
    from xmem_workloads import Cnn, Transformer

    case = Case({"model": model, "optimizer": optimizer, "zero_grad": zero_grad})
    return TracedSizes(Cnn if family == "cnn" else Transformer, case, capability=capability)


def bert_row(row: dict[str, Any]) -> dict[str, Any]:
    """Predict what the driver would show for one way to train bert-large."""
    from bert import BertLarge
    from brim.cases import Case
    from brim.devices.catalog import find_gpu
    from brim.tracing.prediction import Prediction
    from brim.tracing.runtime import Runtime
    from brim.tracing.sizes import TracedSizes

    gpu = find_gpu("v100-16gb")
    traced = TracedSizes(BertLarge, Case({**BERT_DEFAULTS, **row["settings"]}), capability=gpu.capability)
    prediction = Prediction(traced, gpu=gpu, runtime=Runtime(cuda=(11, 3)))
    predicted_mib = prediction.peak(row["microbatch"]).device_bytes / MIB
    return {"predicted_mib": round(predicted_mib), "error": predicted_mib / row["measured_mib"] - 1}


def large_row(row: dict[str, Any]) -> dict[str, Any]:
    """Trace a model of 70 billion parameters twice, as a prediction does, and tell what that took."""
    import resource

    from brim.cases import Case
    from brim.tracing.sizes import TracedSizes
    from llama import Llama70b

    started, cpu_started = time.monotonic(), time.process_time()
    traced = TracedSizes(Llama70b, Case(), capability=tuple(row["capability"]))
    return {
        "num_operations": 2 * traced.num_operations,
        "parameter_bytes": traced.record(4).breakdown()["parameters"],
        "cpu_seconds": round(time.process_time() - cpu_started, 1),
        "seconds": round(time.monotonic() - started, 1),
        "process_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def tokens_row(row: dict[str, Any]) -> dict[str, Any]:
    """Predict a generation of which some tokens are traced, and some others entered."""
    from brim.tracing import decoding
    from brim.tracing.prediction import predict
    from llama import LlamaGenerate

    is_whole = row["most_events"] is None
    how = {"_PERIODS": ()} if is_whole else {"MOST_EVENTS": row["most_events"]}
    with mock.patch.multiple(decoding, **how):
        started = time.process_time()
        prediction = predict(LlamaGenerate, gpu="rtx-3090")
        traced_seconds = time.process_time() - started
        _ = prediction.largest
    return {
        "largest": prediction.largest,
        "token_stride": prediction.observed.token_stride,
        "two_traces_cpu_seconds": round(traced_seconds, 1),
        "cpu_seconds": round(time.process_time() - started, 1),
    }


def _csv_rows(name: str) -> Iterator[dict[str, Any]]:
    with (DATA / name).open() as lines:
        yield from (row for row in csv.DictReader(lines) if row.get("oom") != "true")


def _lengths_rows() -> Iterator[dict[str, Any]]:
    for model, optimizer, batch, mode in LENGTHS_RUNS:
        keys = {"model": model, "optimizer": optimizer, "batch_size": batch, "zero_grad_mode": mode}
        runs = [run for run in _csv_rows("xmem-runs.csv") if keys.items() <= run.items()]
        run = max(runs, key=lambda run: int(run["measured_bytes"]))
        for first_tokens in FIRST_TOKENS:
            yield {
                "model": model,
                "optimizer": optimizer,
                "zero_grad": int(mode or 0),
                "microbatch": int(batch),
                "first_tokens": first_tokens,
                "gpu": run["gpu"],
                "gpu_bytes": int(run["gpu_total_bytes"]),
                "measured_bytes": int(run["measured_bytes"]),
            }


def _cpu_rows() -> Iterator[dict[str, Any]]:
    from zoo import MODELS, OPTIMIZERS

    for model in MODELS:
        for optimizer in OPTIMIZERS:
            for size in ZOO_SIZES:
                yield {"model": model, "optimizer": optimizer, "microbatch": size}


def _bert_rows() -> Iterator[dict[str, Any]]:
    for name, size, settings, measured in BERT_ROWS:
        yield {"name": name, "microbatch": size, "settings": settings, "measured_mib": measured}


SETS: dict[str, tuple[Callable[[], Iterator[dict[str, Any]]], Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "cpu": (_cpu_rows, cpu_row),
    "timm": (lambda: _csv_rows("timm-rtx3090-train.csv"), timm_row),
    "time": (lambda: itertools.islice(_csv_rows("timm-rtx3090-train.csv"), 0, None, TIMED_STRIDE), time_row),
    "xmem": (lambda: _csv_rows("xmem-runs.csv"), xmem_row),
    "lengths": (_lengths_rows, lengths_row),
    "bert": (_bert_rows, bert_row),
    "tokens": (lambda: ({"most_events": most} for most in TOKENS_ROWS), tokens_row),
    "large": (lambda: iter([{"model": "llama-70b", "capability": [9, 0]}]), large_row),
}
