"""Searches inside a job of two ranks over gloo, run by torchrun; rank 1 has less room than rank 0."""

import sys

import torch
import torch.distributed as dist
from torch import nn

LARGEST = {0: 40, 1: 24}


class Net(nn.Module):
    """A model that runs out of memory where the rank's room ends, in the middle of the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if len(inputs) > LARGEST[dist.get_rank()]:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self.layer(inputs)


def accelerate() -> None:
    from accelerate import Accelerator

    from brim.integrations.accelerate import find_executable_batch_size

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    net = Net()

    @find_executable_batch_size(starting_batch_size=8, device="cpu", memory="2GiB")
    def train(batch_size):
        accelerator.free_memory()
        model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
        for _ in range(4):
            accelerator.backward(model(torch.randn(batch_size, 4) + dist.get_rank()).sum())
            optimizer.step()
            optimizer.zero_grad()
        return batch_size

    size = train()
    weights = [torch.zeros_like(net.layer.weight) for _ in range(2)]
    dist.all_gather(weights, net.layer.weight.detach())
    print(f"rank {dist.get_rank()} ran with {size}, weights equal: {torch.equal(*weights)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    {"accelerate": accelerate}[sys.argv[1]]()
