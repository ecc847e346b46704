"""One peer's search, in the process that this file is run as; prints one line of JSON.

    python peers.py accelerate workloads.py:ConvNet --cap 4096 --limit-bytes 805306368 --steps 3

The peers are what users call: `accelerate.utils.find_executable_batch_size` and Lightning's
`Tuner.scale_batch_size`, each with its own defaults where no setting is named here. Lightning trains by manual
optimization, so that its steps are the workload's own: the same model, optimizer and loss.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from brim import Workload
from trials import end_with, is_out_of_memory, lift_limit, limit_memory, load, make, run_steps

# Where Lightning starts; its own default.
_FIRST_SIZE = 2


@dataclass(slots=True, kw_only=True)
class Tally:
    """The sizes that a peer tried, in order, and those that failed for memory."""

    sizes: list[int] = field(default_factory=list)
    out_of_memory: list[int] = field(default_factory=list)

    def begin(self, size: int) -> None:
        """Count a size; the steps of one size follow each other, so only a change is a new one."""
        if not self.sizes or self.sizes[-1] != size:
            self.sizes.append(size)

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Count the current size as out of memory if the block fails for memory."""
        try:
            yield
        except Exception as error:
            if is_out_of_memory(error):
                self.out_of_memory.append(self.sizes[-1])
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a peer is to search, and within which bounds."""

    workload_class: type[Workload]
    cap: int
    limit_bytes: int
    steps: int
    tally: Tally


def search_with_accelerate(job: Job) -> int:
    """Start at the cap and go down."""
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=job.cap)
    def train(batch_size: int) -> int:
        job.tally.begin(batch_size)
        with job.tally.watch():
            run_steps(job.workload_class, batch_size, steps=job.steps)
        return batch_size

    limit_memory(job.limit_bytes)
    answer: int = train()
    return answer


def search_with_lightning(job: Job, *, mode: str) -> int | None:
    """Double from 2 until out of memory; then stop (`power`), or bisect and take 5% off (`binsearch`)."""
    import lightning.pytorch as pl
    from lightning.pytorch.tuner import Tuner

    from lightning_adapter import Adapter

    limit_memory(job.limit_bytes)
    workload = make(job.workload_class)
    workload.build()
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=-1,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            default_root_dir=folder,
        )
        return Tuner(trainer).scale_batch_size(
            Adapter(workload, num_samples=job.cap, first_size=_FIRST_SIZE, tally=job.tally),
            mode=mode,
            steps_per_trial=job.steps,
            init_val=_FIRST_SIZE,
            max_trials=2 * job.cap.bit_length(),
            max_val=job.cap,
        )


SEARCHES: dict[str, Callable[[Job], int | None]] = {
    "accelerate": search_with_accelerate,
    "lightning-power": lambda job: search_with_lightning(job, mode="power"),
    "lightning-binsearch": lambda job: search_with_lightning(job, mode="binsearch"),
}


def run(name: str, job: Job) -> dict[str, Any]:
    """Return what the peer answered, or how it failed."""
    answer, error = None, None
    try:
        answer = SEARCHES[name](job)
    except Exception as failure:  # noqa: BLE001  whatever ends a peer's search is part of the comparison
        lift_limit()
        traceback.print_exc()
        error = traceback.format_exception_only(failure)[-1].strip().splitlines()[-1]
    lift_limit()
    return {
        "answer": answer,
        "error": error,
        "num_probes": len(job.tally.sizes),
        "num_ooms": len(job.tally.out_of_memory),
        "sizes": job.tally.sizes,
        "out_of_memory": job.tally.out_of_memory,
    }


def main() -> None:
    """Search with the peer that is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peer", choices=sorted(SEARCHES))
    parser.add_argument("address")
    for option in ("--cap", "--limit-bytes", "--steps"):
        parser.add_argument(option, type=int, required=True)
    options = parser.parse_args()
    job = Job(
        workload_class=load(options.address),
        cap=options.cap,
        limit_bytes=options.limit_bytes,
        steps=options.steps,
        tally=Tally(),
    )
    end_with(json.dumps(run(options.peer, job)))


if __name__ == "__main__":
    main()
