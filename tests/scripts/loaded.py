"""Training on a GPU with a loader that forks a worker, as tutorials write it."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH, TOKENS, VOCABULARY = 1024, 512, 1000


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, required=True)
    args = parser.parse_args()
    with torch.device("cuda"):
        model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU())
    optimizer = torch.optim.AdamW(model.parameters())
    dataset = TensorDataset(torch.randint(0, VOCABULARY, (512, TOKENS)))
    for _ in range(100):
        for (ids,) in DataLoader(dataset, args.batch_size, shuffle=True, num_workers=1, multiprocessing_context="fork"):
            loss = model(ids.cuda(non_blocking=True)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print(f"loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
