"""Data-parallel training that spawns its own ranks, as torch's DDP tutorial does."""

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(rank: int, num_ranks: int, batch_size: int, meeting: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=num_ranks)
    model = DistributedDataParallel(nn.Linear(1024, 1024))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(100):
        model(torch.randn(batch_size, 1024)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 1 and os.environ.get("FAIL_ON_ONE"):
            torch.ones(2**31)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, args=(2, int(sys.argv[1]), str(Path(folder, "meeting"))), nprocs=2)
