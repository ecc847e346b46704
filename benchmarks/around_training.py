"""Measure brim in the tools around training: lm-eval by groups of length, a Hydra value, findings in trackers.

lm-eval scores 300 short and 20 long requests with a GPT-2 of random weights, in a process that may have 400 MB besides
what it holds after its imports: with its own `batch_size="auto"`, with the batch that this finds given as a fixed one,
and in brim's groups. Time is the CPU time of one thread, so that other jobs on the machine hardly count.

A value of a Hydra configuration is resolved without a history, with one, and again in the same process. A finding is
logged 20 times.

    python benchmarks/around_training.py [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

from report import make_console

HERE = Path(__file__).resolve().parent
DEFAULT_OUT = HERE / "results" / "around_training.json"
WORKLOAD = f"{HERE}/steady_workloads.py:EmbeddingMlp"
ROOM_BYTES = 400_000_000
NUM_SHORT, SHORT, NUM_LONG, LONG = 300, 12, 20, 250
VOCABULARY = 5_000
NUM_LOGS = 20


def lm_eval(which: str) -> dict[str, Any]:
    """Score the requests and count what the model was given."""
    import torch
    from lm_eval.models.huggingface import HFLM

    from brim.devices import make_meter
    from brim.integrations.lm_eval import LengthGroupedHFLM

    torch.set_num_threads(1)
    model, tokenizer, requests = _lm_parts()
    limit_bytes = make_meter("cpu").baseline_bytes + ROOM_BYTES
    given: list[tuple[int, ...]] = []
    parts = {"pretrained": model, "tokenizer": tokenizer, "device": "cpu"}
    if which == "groups":
        lm = LengthGroupedHFLM(**parts)
        lm.brim_memory, lm.brim_fill = limit_bytes, 1.0
    else:
        lm = HFLM(**parts, batch_size="auto" if which == "auto" else int(which))
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, resource.RLIM_INFINITY))
    model.register_forward_pre_hook(
        lambda module, args, kwargs: given.append(tuple((args[0] if args else kwargs["input_ids"]).shape)),
        with_kwargs=True,
    )
    started = time.process_time()
    answers = lm.loglikelihood(requests, disable_tqdm=True)
    seconds = time.process_time() - started
    assert len(answers) == len(requests)
    return {
        "batches": [int(which)] if which.isdigit() else list(lm.batch_sizes.values()),
        "num_forward": len(given),
        "num_tokens": sum(rows * columns for rows, columns in given),
        "cpu_seconds": round(seconds, 2),
    }


def _lm_parts() -> tuple[Any, Any, list[Any]]:
    """Return a model of random weights, a tokenizer of made-up words, and requests in no order."""
    import random

    import torch
    from lm_eval.api.instance import Instance
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    words = ["<eos>", *(f"w{number}" for number in range(VOCABULARY - 1))]
    inner = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<eos>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", pad_token="<eos>")
    torch.manual_seed(0)
    shape = {"n_layer": 2, "n_embd": 128, "n_head": 4, "n_positions": 256}
    model = GPT2LMHeadModel(GPT2Config(**shape, vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0)).eval()
    draw = random.Random(0)
    lengths = [SHORT] * NUM_SHORT + [LONG] * NUM_LONG
    draw.shuffle(lengths)
    texts = [" ".join(draw.choice(words[1:]) for _ in range(length)) for length in lengths]
    return model, tokenizer, [
        Instance(request_type="loglikelihood", doc={}, arguments=(text, " w1 w2"), idx=index)
        for index, text in enumerate(texts)
    ]  # fmt: skip


def hydra(_: str) -> dict[str, Any]:
    """Resolve a batch size three times: searched, remembered by the history, remembered by the process."""
    from omegaconf import OmegaConf

    from brim.integrations.hydra import RESOLVER, register

    config = {"batch_size": f"${{brim:{WORKLOAD},{{}},{{cap:64,device:cpu,memory:2GiB}}}}"}
    seconds = {}
    for name in ("searched", "from_history", "again"):
        if name == "from_history":
            OmegaConf.clear_resolver(RESOLVER)  # as a new process would begin
        register()
        started = time.perf_counter()
        size = OmegaConf.create(config).batch_size
        seconds[name] = round(time.perf_counter() - started, 4)
    return {"batch": size, "seconds": seconds}


def trackers(_: str) -> dict[str, Any]:
    """Log a finding many times, each into a run of its own, and return the median time."""
    import mlflow

    import brim
    from brim.integrations.mlflow import log_to_mlflow
    from brim.integrations.tensorboard import log_to_tensorboard

    found = brim.find(WORKLOAD, cap=8, device="cpu", memory="2GiB", cache=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mlflow.set_tracking_uri(f"file:{folder}/mlruns")

        def into_mlflow(index: int) -> None:
            with mlflow.start_run():
                started = time.perf_counter()
                log_to_mlflow(found)
                taken.append(time.perf_counter() - started)

        def into_tensorboard(index: int) -> None:
            started = time.perf_counter()
            log_to_tensorboard(found, folder / str(index))
            taken.append(time.perf_counter() - started)

        taken: list[float] = []
        medians = {}
        logs: dict[str, Callable[[int], None]] = {"mlflow": into_mlflow, "tensorboard": into_tensorboard}
        for tracker, log in logs.items():
            taken.clear()
            for index in range(NUM_LOGS):
                log(index)
            medians[tracker] = round(statistics.median(taken), 4)
    return {"search_seconds": round(found[0].seconds, 2), "seconds": medians}


JOBS: dict[str, Callable[[str], dict[str, Any]]] = {"lm_eval": lm_eval, "hydra": hydra, "trackers": trackers}


def run_alone(name: str, which: str, folder: str) -> dict[str, Any]:
    """Run one job in a process of its own, with a history of its own."""
    environment = {
        **os.environ, "BRIM_CACHE_DIR": folder, "MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, __file__, "--run", name, which]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no output"])[-1][:200]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Run every job, print a table and write it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        warnings.simplefilter("ignore")
        name, which = options.run
        print(json.dumps(JOBS[name](which)))
        return
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        results["lm_eval auto"] = run_alone("lm_eval", "auto", folder)
        fixed = results["lm_eval auto"].get("batches", [8])[0]
        results["lm_eval fixed"] = run_alone("lm_eval", str(fixed), folder)
        results["lm_eval groups"] = run_alone("lm_eval", "groups", folder)
        results["hydra"] = run_alone("hydra", "", folder)
        results["trackers"] = run_alone("trackers", "", folder)
    options.out.write_text(json.dumps({"room_bytes": ROOM_BYTES, "results": results}, indent=1) + "\n")
    table = Table("job", "result")
    for name, row in results.items():
        table.add_row(name, ", ".join(f"{key} {value}" for key, value in row.items()))
    make_console().print(table)


if __name__ == "__main__":
    main()
