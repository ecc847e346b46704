"""Scripts that do what scripts should not: odd.py BEHAVIOUR BATCH."""

import os
import subprocess
import sys

import torch
from torch import nn

behaviour, batch = sys.argv[1], int(sys.argv[2])


def train(size: int, *, num_steps: int = 100, model: nn.Module | None = None) -> None:
    model = model or nn.Linear(1024, 1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(num_steps):
        model(torch.randn(size, 1024)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


class TakesALot(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ones(2**31) * self.weight


if behaviour == "speaks_of_memory":
    print("torch.OutOfMemoryError: CUDA out of memory. Going on.")
    train(batch)
elif behaviour == "fails":
    nn.Linear(4, 4)(torch.ones(2, 5))
elif behaviour == "exits":
    nn.Linear(4, 4)
    sys.exit("no data in this folder")
elif behaviour == "survives":
    try:
        train(batch, model=TakesALot())
    except RuntimeError:
        train(1)
elif behaviour == "leaves":
    code = "import threading; threading.Event().wait()"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
elif behaviour == "small_data":
    train(min(batch, 3))
elif behaviour == "short":
    train(batch, num_steps=1)
elif behaviour == "dies":
    train(batch, num_steps=1)
    os.kill(os.getpid(), 9)
elif behaviour == "by_hand":
    weight = nn.Linear(1024, 4)
    for _ in range(100):
        weight(torch.randn(batch, 1024)).sum().backward()
        with torch.no_grad():
            for parameter in weight.parameters():
                parameter -= parameter.grad
elif behaviour == "two_optimizers":
    models = [nn.Linear(1024, 4), nn.Linear(1024, 8)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for _ in range(100):
        for model, optimizer in zip(models, optimizers, strict=True):
            model(torch.randn(batch, 1024)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
elif behaviour == "compiles":
    model = nn.Sequential(nn.Linear(1024, 8), nn.Linear(8, 1024))
    model.compile(backend="eager")
    train(batch, model=model)
elif behaviour == "compiles_steps":
    inner = nn.Linear(1024, 1024)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    compute_loss = torch.compile(lambda x: inner(x).sum(), backend="eager")
    for _ in range(100):
        compute_loss(torch.randn(batch, 1024)).backward()
        optimizer.step()
        optimizer.zero_grad()
elif behaviour == "evaluates":
    model = nn.Sequential(nn.Linear(1024, 8), nn.Linear(8, 1024)).eval()
    with torch.inference_mode():
        for _ in range(100):
            model(torch.randn(batch, 1024))
elif behaviour == "generates":

    class Talker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x)

        @torch.no_grad()
        def generate(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(5):
                x = self(x)
            return x

    talker = Talker().eval()
    for _ in range(100):
        talker.generate(torch.ones(batch, 8))
else:
    raise SystemExit(f"there is no behaviour {behaviour}")
