"""A training loop as tutorials write it; run it alone or with torchrun."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--amp", action="store_true")
    args = parser.parse_args()

    is_distributed = "RANK" in os.environ
    if is_distributed:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(args.samples, args.width), torch.randint(0, 10, (args.samples,)))
    sampler = DistributedSampler(dataset) if is_distributed else None
    loader = DataLoader(dataset, args.batch_size, shuffle=sampler is None, sampler=sampler, num_workers=args.workers)
    model = nn.Sequential(
        nn.Linear(args.width, 4096), nn.ReLU(), nn.Linear(4096, 64), nn.ReLU(), nn.Linear(64, 4096), nn.Linear(4096, 10)
    )
    if is_distributed:
        model = DistributedDataParallel(model)
    if args.compile:
        model = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_function = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        for x, y in loader:
            with torch.autocast("cpu", torch.bfloat16, enabled=args.amp):
                loss = loss_function(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")
    if is_distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
