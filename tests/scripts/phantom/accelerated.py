"""A training loop with Accelerate, mixed precision and accumulation, as its documentation shows it."""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--mixed_precision", default="bf16")
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()

    accelerator = Accelerator(mixed_precision=args.mixed_precision, gradient_accumulation_steps=args.accumulation)
    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
    optimizer = torch.optim.AdamW(model.parameters())
    dataset = TensorDataset(torch.zeros(16384, 1024), torch.zeros(16384, 1024))
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    num_steps = 0
    while num_steps < args.steps:
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            num_steps += accelerator.sync_gradients
            if num_steps == args.steps:
                break
        losses = accelerator.gather(loss.detach())
        accelerator.print(f"step {num_steps}: {losses.mean().item():.3f} on {accelerator.device}")
    print(torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
