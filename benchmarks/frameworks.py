"""Compare what frameworks do about the batch size with what brim does in their place, each in a process of its own.

Every process may have 1 GiB. The model is the same everywhere: a small MLP over 1,024 vectors of a sample. Each job
asks for an effective batch of 512 where its framework knows one, or starts at a batch of 8 where it does not.

    python benchmarks/frameworks.py [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import nn
from torch.utils.data import DataLoader

from report import make_console

HERE = Path(__file__).resolve().parent
DEFAULT_OUT = HERE / "results" / "frameworks.json"
LIMIT_BYTES = 2**30
EFFECTIVE = 512
START = 8
NUM_STEPS = 4
SAMPLE = torch.ones(1024, 64)


class Net(nn.Module):
    """An MLP whose activations are most of the memory; it notes the batches that it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Return the loss."""
        self.seen.append(len(x))
        return {"loss": (self.layers(x) - x).square().mean()}


def accelerate(find_executable_batch_size: Any, start: int, **settings: Any) -> dict[str, Any]:
    """Train with the decorator; nothing keeps the effective batch."""
    net = Net()

    @find_executable_batch_size(starting_batch_size=start, **settings)
    def train(batch_size: int) -> int:
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(NUM_STEPS):
            net(SAMPLE.expand(batch_size, -1, -1) + 0)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
        return batch_size

    size = train()
    return {"batch": size, "effective": size, "num_forward": len(net.seen)}


def lightning(callback: Any) -> dict[str, Any]:
    """Fit with the callback."""
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.batch_size, self.net = START, Net()

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            return self.net(batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader([SAMPLE] * 4 * EFFECTIVE, batch_size=self.batch_size)

    module = Module()
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = pl.Trainer(accelerator="cpu", callbacks=[callback], max_steps=2, **quiet)
    trainer.fit(module)
    size = module.batch_size
    return {"batch": size, "effective": size * trainer.accumulate_grad_batches, "num_forward": len(module.net.seen)}


def transformers(fit: Any, **settings: Any) -> dict[str, Any]:
    """Train with arguments that ask for the effective batch in one piece."""
    from transformers import Trainer, TrainingArguments

    net = Net()
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, per_device_train_batch_size=EFFECTIVE, max_steps=2, use_cpu=True, report_to=[], disable_tqdm=True,
            save_strategy="no", logging_strategy="no", **settings,
        )  # fmt: skip

        def make_trainer(args: Any) -> Any:
            return Trainer(model=net, args=args, train_dataset=[{"x": SAMPLE}] * 2 * EFFECTIVE)

        fit(make_trainer, args)
        make_trainer(args).train()
    size = net.seen[-1]
    return {"batch": size, "effective": size * args.gradient_accumulation_steps, "num_forward": len(net.seen)}


def run(name: str) -> dict[str, Any]:
    """Run one job; the frameworks' own get their limit from the kernel, as brim sets it for its probes."""
    memory = {"memory": LIMIT_BYTES, "fill": 1.0, "cache": False}
    if name.endswith("brim"):
        from brim.integrations.accelerate import find_executable_batch_size
        from brim.integrations.lightning import BatchSizeCallback
        from brim.integrations.transformers import fit_arguments

        jobs: dict[str, Any] = {
            "accelerate brim": lambda: accelerate(find_executable_batch_size, START, cap=EFFECTIVE, **memory),
            "lightning brim": lambda: lightning(BatchSizeCallback(effective=EFFECTIVE, **memory)),
            "transformers brim": lambda: transformers(lambda *given: fit_arguments(*given, **memory)),
        }
        return jobs[name]()
    from accelerate.utils import find_executable_batch_size as accelerates_own
    from lightning.pytorch.callbacks import BatchSizeFinder

    torch.ones(2**18).sum()  # starts torch's threads before there is a limit on their stacks
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT_BYTES, resource.RLIM_INFINITY))
    jobs = {
        "accelerate own": lambda: accelerate(accelerates_own, START),
        "lightning own": lambda: lightning(BatchSizeFinder(mode="binsearch", init_val=START, max_val=EFFECTIVE)),
        "transformers own": lambda: transformers(lambda *given: None, auto_find_batch_size=True),
    }
    return jobs[name]()


def main() -> None:
    """Run every job in a process of its own, print a table and write it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        warnings.simplefilter("ignore")
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        started = time.perf_counter()
        print(json.dumps({**run(options.run), "seconds": round(time.perf_counter() - started, 1)}))
        return
    results = {}
    for framework in ("accelerate", "lightning", "transformers"):
        for which in ("own", "brim"):
            name = f"{framework} {which}"
            done = subprocess.run([sys.executable, __file__, "--run", name], capture_output=True, text=True)
            failure = (done.stderr.strip().splitlines() or ["no output"])[-1][:200]
            results[name] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"failed": failure}
            document = {"limit_bytes": LIMIT_BYTES, "effective": EFFECTIVE, "start": START, "results": results}
            options.out.write_text(json.dumps(document, indent=1) + "\n")
    table = Table("job", "batch", "effective", "forward passes", "seconds")
    for name, row in results.items():
        values = [str(row.get(key, "")) for key in ("batch", "effective", "num_forward", "seconds")]
        table.add_row(name, *values) if "failed" not in row else table.add_row(name, row["failed"])
    make_console().print(table)


if __name__ == "__main__":
    main()
