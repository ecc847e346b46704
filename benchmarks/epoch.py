"""Train an epoch of batches by length under the kernel's limit on memory, and say whether it came to its end.

Usage: python epoch.py '{"limit_bytes": …, "largest": {"64": …}, "margin": …, "interpolate": …, "seed": …}'
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from torch.utils.data import DataLoader

import brim
from trials import is_out_of_memory, limit_memory, make

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
from by_length import make_texts, pad
from finetune import Finetune


def main() -> None:
    """Print how many steps an epoch has, and how many of them fitted."""
    options = json.loads(sys.argv[1])
    texts = make_texts()
    sampler = brim.TokenBudgetSampler(
        [len(text) for text in texts],
        largest={int(length): size for length, size in options["largest"].items()},
        margin=options["margin"],
        interpolate=options["interpolate"],
        seed=options["seed"],
    )
    job = make(Finetune)
    limit_memory(options["limit_bytes"])
    job.build()
    num_fitted = 0
    try:
        for batch in DataLoader(texts, batch_sampler=sampler, collate_fn=pad):
            job.step(batch)
            num_fitted += 1
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    print(json.dumps({"num_steps": len(sampler), "num_fitted": num_fitted}))


if __name__ == "__main__":
    main()
