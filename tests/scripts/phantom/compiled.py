"""A compiled model: Triton compiles its kernels, and their launches do nothing."""

import argparse

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--mode", default="default", help="default, reduce-overhead, max-autotune, eager")
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()

    model = nn.Sequential(Block(512), Block(512), nn.Linear(512, 1000)).cuda()
    if args.mode != "eager":
        model.compile(mode=args.mode)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(args.steps):
        x = torch.randn(args.batch_size, 128, 512, device="cuda")
        labels = torch.randint(1000, (args.batch_size * 128,), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), loss.item())


if __name__ == "__main__":
    main()
