"""A workload as a command: builds it for a case, and runs its steps on one batch.

python -m brim.probing.scripts.workload file.py:Name STEPS MICROBATCH seq_len=128 …
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from brim.cases import Case, parse_cases

# What stands for a setting that another case has and this one has not: its place, not filled in.
_UNFILLED = "={"


def words_of(address: str, cases: Sequence[Case], *, steps: int) -> list[str]:
    """Return the command that runs a workload, with places for the microbatch and every case.

    >>> words_of("train.py:Finetune", [Case({"seq_len": 128})], steps=3)[2:]
    ['brim.probing.scripts.workload', 'train.py:Finetune', '3', '{batch}', 'seq_len={seq_len}']
    """
    names = dict.fromkeys(name for case in cases for name in case)
    places = [f"{name}={{{name}}}" for name in names]
    return [sys.executable, "-m", "brim.probing.scripts.workload", address, str(steps), "{batch}", *places]


def main() -> None:
    """Run the workload in the arguments on the first GPU."""
    import torch

    from brim.probing.evidence import wrong_size
    from brim.workload import load, prepare

    address, steps, microbatch, *settings = sys.argv[1:]
    (case,) = parse_cases([each for each in settings if _UNFILLED not in each])
    workload = prepare(load(address), case, torch.device("cuda:0"))
    workload.build()
    batch = workload.batch(int(microbatch))
    problem = wrong_size(batch, int(microbatch), workload.batch)
    if problem is not None:
        raise ValueError(problem)
    for _ in range(int(steps)):
        workload.step(batch)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
