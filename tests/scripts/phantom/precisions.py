"""Mixed precision in both halves, as torch's documentation shows it: autocast, and a scaler where it is needed."""

import argparse

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--precision", choices=["float32", "float16", "bfloat16"], default="bfloat16")
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()

    model = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=args.precision == "float16")
    half = getattr(torch, args.precision)
    for step in range(args.steps):
        inputs, targets = torch.randn(2, args.batch_size, 1024, device="cuda")
        with torch.autocast("cuda", dtype=half, enabled=half is not torch.float32):
            outputs = model(inputs)
            loss = nn.functional.mse_loss(outputs.float(), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}, {outputs.dtype}, scale {scaler.get_scale()}")
    print(torch.cuda.max_memory_allocated(), len(optimizer.state))


if __name__ == "__main__":
    main()
