"""The rows of `published.py`, on the phantom that this process sees, or traced.

    python benchmarks/published_rows.py xmem < rows.jsonl > results.jsonl

What every row needs is imported once; a row on a phantom is then a fork of this process, which has not used the GPU.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

Row = dict[str, Any]
NUM_XMEM_STEPS = 4
NUM_TIMM_STEPS = 2
_LONGEST_PROBLEM = 300


def prepare_xmem() -> Callable[[Row], Row]:
    """Return what runs the training runs of xMem."""
    from xmem_workloads import Cnn, Transformer

    return functools.partial(_xmem_row, {"cnn": Cnn, "transformer": Transformer})


def _xmem_row(classes: dict[str, Any], row: Row) -> Row:
    case = {"model": row["model"], "optimizer": row["optimizer"], "zero_grad": int(row["zero_grad_mode"] or 0)}
    return run(classes[row["family"]], case, int(row["batch_size"]), steps=NUM_XMEM_STEPS)


def prepare_xmem_trace() -> Callable[[Row], Row]:
    """Return what traces the training runs of xMem, with what the trace knows of cuDNN's workspaces and without."""
    from brim.tracing import recorder
    from brim.tracing.prediction import Prediction
    from brim.tracing.runtime import Runtime
    from published_sets import SETS

    def peak_of(row: Row, *, has_cudnn: bool) -> Any:
        gpu = SETS["xmem"].gpu(row)
        knows = nullcontext() if has_cudnn else mock.patch.object(recorder, "workspace_of", _no_workspace)
        job = (row["family"], row["model"], row["optimizer"], int(row["zero_grad_mode"] or 0))
        with knows:
            traced = _xmem_sizes(*job, gpu.capability, has_cudnn=has_cudnn)
            return Prediction(traced, gpu=gpu, runtime=Runtime(cuda=(12, 4))).peak(int(row["batch_size"]))

    def trace_row(row: Row) -> Row:
        whole = peak_of(row, has_cudnn=True)
        without = peak_of(row, has_cudnn=False) if row["family"] == "cnn" else whole
        return {
            "allocated_bytes": whole.allocated_bytes,
            "reserved_bytes": whole.reserved_bytes,
            "reserved_without_cudnn_bytes": without.reserved_bytes,
        }

    return trace_row


@functools.lru_cache(maxsize=8)
def _xmem_sizes(
    family: str, model: str, optimizer: str, zero_grad: int, capability: tuple[int, int], *, has_cudnn: bool
) -> Any:
    """Trace a job once for rows that differ in the batch."""
    from brim.cases import Case
    from brim.tracing.sizes import TracedSizes
    from xmem_workloads import Cnn, Transformer

    case = Case({"model": model, "optimizer": optimizer, "zero_grad": zero_grad})
    return TracedSizes(Cnn if family == "cnn" else Transformer, case, capability=capability)


def _no_workspace(*args: Any, **kwargs: Any) -> None:
    """Know nothing of cuDNN; a mock would keep what it is called with."""


def prepare_timm() -> Callable[[Row], Row]:
    """Return what trains timm's models at the batch that fitted and at the one that did not."""
    import torch

    from timm_workload import TimmTrain

    torch.backends.cudnn.benchmark = True

    def run_both(row: Row) -> Row:
        case = {"model": row["model"], "layout": row["layout"], "image_size": int(row["image_size"])}
        found: Row = {}
        for name in ("fits_batch", "fails_batch"):
            if row[name]:
                found[name] = run(TimmTrain, case, int(row[name]), steps=NUM_TIMM_STEPS)
                gc.collect()
                torch.cuda.empty_cache()
        return found

    return run_both


def prepare_models(name: str) -> Callable[[Row], Row]:
    """Return what trains the models of a set, which counts its peaks from where it says so itself."""
    import torch

    import published_models

    def run_one(row: Row) -> Row:
        fits = True
        try:
            getattr(published_models, name)(row)
        except torch.OutOfMemoryError:
            fits = False
        return {"fits": fits, **peaks()}

    return run_one


def run(workload_class: Any, case: Row, size: int, *, steps: int) -> Row:
    """Run a workload and return torch's peaks; `fits` is False where memory ran out."""
    import torch

    from brim.cases import Case
    from brim.workload import prepare

    torch.cuda.reset_peak_memory_stats()
    fits = True
    try:
        workload = prepare(workload_class, Case(case), torch.device("cuda:0"))
        workload.build()
        batch = workload.batch(size)
        for _ in range(steps):
            workload.step(batch)
    except torch.OutOfMemoryError:
        fits = False
    return {"fits": fits, **peaks()}


def peaks() -> Row:
    """Return what torch's allocator held at most."""
    import torch

    return {
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def result_of(run_row: Callable[[Row], Row], row: Row) -> Row:
    """Return the result of a row, or what went wrong: a row that cannot be run is counted, not hidden."""
    try:
        return run_row(row)
    except Exception as error:  # noqa: BLE001  a library of the time may raise anything
        traceback.print_exc()
        return {"problem": f"{type(error).__name__}: {error}"[:_LONGEST_PROBLEM]}


def in_fork(run_row: Callable[[Row], Row], row: Row) -> Row:
    """Return the result of a row, which a process of its own ran."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        os.write(write, json.dumps(result_of(run_row, row)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(told) if told else {"problem": f"the process ended with status {status}"}


SETS: dict[str, Callable[[], Callable[[Row], Row]]] = {
    "xmem": prepare_xmem,
    "xmem-trace": prepare_xmem_trace,
    "timm": prepare_timm,
    "qwen-sft": functools.partial(prepare_models, "qwen"),
    "litgpt": functools.partial(prepare_models, "litgpt"),
    "peft": functools.partial(prepare_models, "peft"),
}


def main() -> None:
    """Run the rows on standard input and print a result for each at once."""
    import torch

    torch.set_num_threads(1)
    # What libraries print is no result.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    name = sys.argv[1]
    run_row, run_apart = SETS[name](), not name.endswith("-trace")
    for line in sys.stdin:
        row = json.loads(line)
        began = time.monotonic()
        result = in_fork(run_row, row) if run_apart else result_of(run_row, row)
        seconds = round(time.monotonic() - began, 1)
        print(json.dumps({"row": row, **result, "seconds": seconds}), file=answers, flush=True)


if __name__ == "__main__":
    main()
