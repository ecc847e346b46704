"""Compare predictions with memory that was measured: on this CPU, and by others on real GPUs.

    python benchmarks/prediction.py cpu             # 23 models against the CPU allocator's real peak
    python benchmarks/prediction.py timm            # the largest batch of timm's models on an RTX 3090
    python benchmarks/prediction.py time --processes 1  # what their traces cost on one core
    python benchmarks/prediction.py xmem            # peaks of training runs, beside four other estimators
    python benchmarks/prediction.py lengths         # what a first batch of shorter texts does to four of them
    python benchmarks/prediction.py bert            # seven ways to train bert-large on a V100
    python benchmarks/prediction.py large           # what it takes to trace 70 billion parameters
    python benchmarks/prediction.py tokens          # what it saves and costs not to trace every token of a generation
    python benchmarks/prediction.py timm --limit 20 # a sample, spread over the file

`cpu`, `timm`, `time`, `xmem` and `lengths` need timm and torchvision, the last two also the transformers of their time:
`make benchmark-prediction` installs them apart. `bert` and `large` do without. `data/` says where the figures come
from. Rows run in two processes and in an order of chance, so that a run that is stopped is a fair sample. One that was
done is not done again, only one that had a problem: results are kept in `results/prediction-SET.jsonl` until that file
is deleted. What all of a set add up to is in `results/prediction.json`; a sample's figures are printed alone.
"""

from __future__ import annotations

import argparse
import csv
import functools
import itertools
import json
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from kept_rows import KeptRows, RowsStoppedError, run_rows, spread

if TYPE_CHECKING:
    from brim.devices.catalog import Gpu
    from brim.tracing.sizes import TracedSizes

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
MIB = 2**20
NUM_PROCESSES = 2
# What shells expect of a program that Ctrl-C has ended.
INTERRUPTED = 130
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
    with (HERE / "data" / name).open() as lines:
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


def run_row(name: str, row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its result, or with why there is none."""
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        result = SETS[name][1](row)
    except Exception as error:  # a row that cannot be predicted is counted, not hidden
        if missing := _missing_package(error):
            raise ImportError(str(missing)) from error  # that says nothing about the row
        result = {"problem": f"{type(error).__name__}: {error}"[:300]}
    return {"row": row, **result}


def _missing_package(error: BaseException | None) -> ImportError | None:
    """Return why something could not be imported, where that is what an error comes from."""
    while error is not None and not isinstance(error, ImportError):
        error = error.__cause__
    return error


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


def main() -> None:
    """Run the rows that were not done yet, then print what all add up to, and keep it once the set is whole."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("set", choices=sorted(SETS))
    parser.add_argument("--limit", type=_positive, help="rows to run, spread over the set; default: all")
    parser.add_argument("--processes", type=_positive, default=NUM_PROCESSES, help="rows at once; default: %(default)s")
    options = parser.parse_args()
    try:
        rows = list(SETS[options.set][0]())
        path = RESULTS / f"prediction-{options.set}.jsonl"
        kept = KeptRows(path)
        chosen = spread(rows, options.limit)
        if num_kept := sum(row in kept for row in chosen):
            print(f"{num_kept} of {len(chosen)} rows are kept from earlier runs: delete {path.name} to run them again")
        run_rows(partial(run_row, options.set), chosen, kept, processes=options.processes, description=options.set)
    except ImportError as error:
        sys.exit(f"A package is missing: {error}. `make benchmark-prediction` installs all and goes on with every set.")
    except RowsStoppedError as stopped:
        print(f"stopped: {stopped.num_done} of {stopped.num_rows} rows done; run it again to go on")
        sys.exit(INTERRUPTED)
    summary = summarize(options.set, kept.results)
    print(json.dumps(summary, indent=2))
    num_done = sum(row in kept for row in rows)
    if num_done < len(rows):
        print(f"This is a sample: {num_done} of {len(rows)} rows. results/prediction.json stays as it is.")
    else:
        _keep(options.set, summary)


def _keep(name: str, summary: dict[str, Any]) -> None:
    document = RESULTS / "prediction.json"
    summaries = json.loads(document.read_text()) if document.exists() else {}
    document.write_text(json.dumps(summaries | {name: summary}, indent=2) + "\n")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} rows are none: give 1 or more")
    return number


if __name__ == "__main__":
    main()
