"""Batch texts by length, as many as were found to fit for each length, and train on them.

Run it with `python examples/by_length.py`; it takes about a minute on two cores.
"""

import random

import torch
from finetune import Finetune
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import brim

NUM_TEXTS = 2_000
LENGTHS = (64, 128, 256)


def make_texts():
    """Return texts of different lengths, as tokens."""
    draw = random.Random(0)
    sizes = [min(LENGTHS[-1], max(1, round(draw.lognormvariate(4, 0.8)))) for _ in range(NUM_TEXTS)]
    return [torch.randint(0, 1000, (size,)) for size in sizes]


def pad(texts):
    """Join texts into one tensor, each padded to the longest."""
    return pad_sequence(texts, batch_first=True)


def main():
    """Find, batch and train."""
    findings = brim.find(Finetune, cases=[{"seq_len": length} for length in LENGTHS], memory="1GiB")
    for finding in findings:
        print(finding.case, "->", finding.microbatch)

    texts = make_texts()
    sampler = brim.TokenBudgetSampler([len(text) for text in texts], largest=findings)
    print(f"{sampler}, {sampler.padding_efficiency:.1%} of the tokens are no padding")

    loader = DataLoader(texts, batch_sampler=sampler, collate_fn=pad, num_workers=2)
    job = Finetune()
    job.device, job.case = torch.device("cpu"), brim.Case()
    job.build()
    for step, batch in enumerate(loader):
        job.step(batch)
        if step < 3:
            print(f"step {step}: {batch.shape[0]} texts of up to {batch.shape[1]} tokens")


if __name__ == "__main__":
    main()
