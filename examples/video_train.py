"""A small trainer on synthetic clips: which way does the square move? The trial of `video_grid.yaml`.

It reads its whole configuration from one file and writes its metrics to the path in BRIM_RESULT.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
import yaml
from video_models import CLASSES, make_model

DIRECTIONS = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])


def make_clips(number, frames, pixels, generator):
    """Return noisy clips of a square that moves in one of four directions, and the directions."""
    labels = torch.randint(CLASSES, (number,), generator=generator)
    start = torch.randint(pixels, (number, 2), generator=generator)
    clips = torch.randn(number, 3, frames, pixels, pixels, generator=generator) * 0.3
    for frame in range(frames):
        corner = (start + frame * DIRECTIONS[labels] * 2) % pixels
        for row in range(4):
            for column in range(4):
                y, x = ((corner + torch.tensor([row, column])) % pixels).T
                clips[torch.arange(number), :, frame, y, x] += 1.0
    return clips, labels


def accuracy_of(model, clips, labels, batch_size):
    """Return the share of clips whose direction is found."""
    model.eval()
    with torch.no_grad():
        found = torch.cat([model(batch).argmax(1) for batch in clips.split(batch_size)])
    return (found == labels).float().mean().item()


def train(config):
    """Train one model and return its metrics."""
    data, hp = config["data"], config["hp"]
    torch.manual_seed(config["seed"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(config["seed"])
    sizes = (data["frames"], data["pixels"], generator)
    clips, labels = (tensor.to(device) for tensor in make_clips(data["num_clips"], *sizes))
    held_out = [tensor.to(device) for tensor in make_clips(128, *sizes)]
    model = make_model(config["model"]["type"], config["model"]["library"]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=hp["learning_rate"])
    started = time.perf_counter()
    for _ in range(hp["num_epochs"]):
        model.train()
        for batch in torch.randperm(len(clips)).split(hp["batch_size"]):
            loss = F.cross_entropy(model(clips[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    seconds = time.perf_counter() - started
    return {
        "accuracy": accuracy_of(model, *held_out, hp["batch_size"]),
        "loss": loss.item(),
        "clips_per_second": hp["num_epochs"] * len(clips) / seconds,
        "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    metrics = train(yaml.safe_load(parser.parse_args().config.read_text()))
    print(metrics)
    if "BRIM_RESULT" in os.environ:
        Path(os.environ["BRIM_RESULT"]).write_text(json.dumps(metrics))
