"""Layers whose activations are computed anew in the backward pass."""

import argparse

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH, LAYERS = 1024, 8


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--checkpoint", choices=["none", "reentrant", "not"], default="not")
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()

    layers = nn.ModuleList(
        nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, WIDTH))
        for _ in range(LAYERS)
    ).cuda()
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    for _ in range(args.steps):
        x = torch.randn(args.batch_size, WIDTH, device="cuda", requires_grad=True)
        for layer in layers:
            x = layer(x) if args.checkpoint == "none" else checkpoint(layer, x, use_reentrant=args.checkpoint[0] == "r")
        x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
