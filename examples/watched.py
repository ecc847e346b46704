"""A training script that takes its batch size from brim.toml; `brim watch` sees its steps by itself.

brim plan --effective 64 --largest 16 --save
brim watch -- python examples/watched.py
"""

import torch
from torch import nn

import brim

NUM_STEPS = 10
SEQ_LEN = 64

plan = brim.active_plan()
embed, model = nn.Embedding(1000, 128), nn.TransformerEncoderLayer(128, 4, batch_first=True)
parameters = [*embed.parameters(), *model.parameters()]
optimizer = torch.optim.AdamW(parameters)

for _ in range(NUM_STEPS):
    for size in plan.microbatches:
        loss = model(embed(torch.randint(0, 1000, (size, SEQ_LEN)))).square().mean()
        (loss * size / sum(plan.microbatches)).backward()
    optimizer.step()
    optimizer.zero_grad()
