"""A small convolutional net fed by workers, through pinned memory."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, 32, 32), float(index)), index % 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--start", default=None, help="how workers are started: fork, spawn or forkserver")
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()

    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(
        Images(),
        batch_size=args.batch_size,
        num_workers=args.workers,
        pin_memory=True,
        persistent_workers=args.workers > 0,
        multiprocessing_context=args.start,
    )
    for _, (images, labels) in zip(range(args.steps), loader, strict=False):
        assert images.is_pinned()
        images, labels = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(torch.cuda.max_memory_allocated(), labels[:3].tolist())


if __name__ == "__main__":
    main()
