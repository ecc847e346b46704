"""DDP training in which something goes wrong on one rank: faulty_ranks.py FAULT BATCH, under torchrun."""

import os
import resource
import sys
import threading

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

fault, batch = sys.argv[1], int(sys.argv[2])
rank = int(os.environ["RANK"])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1024, 1024)
        self.num_calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        if self.num_calls == 2 and rank == 1:
            if fault == "forward":
                torch.ones(2**31)
            elif fault == "killed":
                os.kill(os.getpid(), 9)
            elif fault == "hangs":
                threading.Event().wait()
        return self.layer(x)


dist.init_process_group("gloo")
if fault == "less" and rank == 1:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (448 * 2**20, hard))
net = Net()
if fault == "backward" and rank == 0:
    net.layer.bias.register_hook(lambda gradient: gradient + torch.ones(2**31).sum())
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(100):
    model(torch.randn(batch, 1024)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
