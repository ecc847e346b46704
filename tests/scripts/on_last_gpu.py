"""A job that holds 512 MiB of the last GPU and makes many small steps; with `oom` it asks for more than there is."""

import sys

import torch

device = torch.device("cuda", torch.cuda.device_count() - 1)
held = torch.empty(512 * 2**20, dtype=torch.uint8, device=device)
model = torch.nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2000):
    model(torch.ones(8, 64, device=device)).sum().backward()
    optimizer.step()
if "oom" in sys.argv:
    torch.empty(2**50, dtype=torch.uint8, device=device)
