"""A training loop with Accelerate, as its documentation shows it."""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--per_device_batch_size", type=int, required=True)
    parser.add_argument("--accumulation", type=int, default=2)
    args = parser.parse_args()

    accelerator = Accelerator(gradient_accumulation_steps=args.accumulation)
    model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    dataset = TensorDataset(torch.randn(8192, 64), torch.randn(8192, 64))
    loader = DataLoader(dataset, batch_size=args.per_device_batch_size, shuffle=True)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for epoch in range(50):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
