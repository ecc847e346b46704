"""GPT-2 as people train it: bfloat16, AdamW, clipped gradients. It knows nothing of brim.

brim predict --gpu rtx-4090 -- python examples/train_gpt.py --batch_size {batch}
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, LAYERS, VOCABULARY, TOKENS = 768, 12, 12, 50_304, 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        parts = self.attention(self.attention_norm(x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).reshape(x.shape))
        return x + self.feed(self.norm(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids, targets):
        places = torch.arange(ids.shape[1], device=ids.device)
        logits = self.head(self.norm(self.blocks(self.embed(ids) + self.position(places))))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()
    model = Gpt().to(args.device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(args.steps):
        ids = torch.randint(0, VOCABULARY, (args.batch_size, args.tokens)).to(args.device)
        with torch.autocast(args.device, torch.bfloat16):
            loss = model(ids, ids)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
