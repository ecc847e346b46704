"""Accumulation that equals the big batch, and an audit of a loop that does not.

Texts have different numbers of labels, and ten microbatches do not make whole windows of four.
Run it with `python examples/accumulation.py`.
"""

import torch
from torch import nn
from torch.nn import functional as F

import brim

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(100, 32), nn.Linear(32, 100))
tokens = torch.randint(0, 100, (10, 4, 17))  # ten microbatches of four texts
num_ignored = torch.randint(0, 15, (10, 4, 1))
batches = [
    (text[:, :-1], text[:, 1:].masked_fill(torch.arange(16) < ignored, -100))
    for text, ignored in zip(tokens, num_ignored, strict=True)
]


def loss_fn(batch):
    """Return the sum of the losses, and of how many labels."""
    x, y = batch
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum"), (y != -100).sum()


def usual_loop(loader):
    """Train as most tutorials do: the mean loss of every microbatch, divided by four."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (x, y) in enumerate(loader, 1):
        (F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / 4).backward()
        if step % 4 == 0 or step == len(loader):
            optimizer.step()
            optimizer.zero_grad()


def brims_loop(loader):
    """Train with the gradient of the mean over all labels of a window."""
    acc = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=4)
    for batch in loader:
        loss_sum, items = loss_fn(batch)
        if acc.backward(loss_sum, items=items):
            print(f"update {acc.num_updates}: loss {acc.loss:.4f} over {acc.items:.0f} labels")
    if acc.finish():
        print(f"update {acc.num_updates}: loss {acc.loss:.4f} over {acc.items:.0f} labels")


if __name__ == "__main__":
    print(brim.audit(usual_loop, model, batches, loss_fn), end="\n\n")
    print(brim.audit(brims_loop, model, batches, loss_fn))
