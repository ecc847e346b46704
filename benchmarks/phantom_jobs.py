"""Jobs as people write them, in torch alone: what `phantom_peers.py` runs on every stand-in for a GPU.

    python benchmarks/phantom_jobs.py gpt --batch_size 12      # ends with a line of torch's own peaks

They know nothing of brim. `gpt` is nanoGPT's model and loop in words of our own: the same operations in the same order.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable

_BEGAN = time.monotonic()

import torch  # noqa: E402  its import is a part of what a job costs
from torch import Tensor, nn  # noqa: E402  as above
from torch.nn import functional as F  # noqa: E402  as above
from torch.utils.checkpoint import checkpoint  # noqa: E402  as above

DEVICE = "cuda"
NUM_STEPS = 3
# GPT-2: layers, width, heads, vocabulary (padded to a multiple of 64), tokens.
LAYERS, WIDTH, HEADS, VOCABULARY, TOKENS = 12, 768, 12, 50_304, 1024
ACCUMULATION = 2

Step = Callable[[], object]


class Norm(nn.Module):
    """A layer norm without a bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return F.layer_norm(x, self.weight.shape, self.weight, None, 1e-5)


class Block(nn.Module):
    """Attention and a feed-forward net, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = Norm(WIDTH)
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.feed_norm = Norm(WIDTH)
        self.grow, self.shrink = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add what each part makes of its input."""
        x = x + self._attend(self.attention_norm(x))
        return x + self._feed(self.feed_norm(x))

    def _attend(self, x: Tensor) -> Tensor:
        query, key, value = (
            part.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for part in self.attention(x).split(WIDTH, dim=2)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).contiguous().view(x.shape))

    def _feed(self, x: Tensor) -> Tensor:
        return self.shrink(F.gelu(self.grow(x)))


class Gpt(nn.Module):
    """GPT-2, its head tied to its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), Norm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.embed.weight = self.head.weight

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits and the loss."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        # Both have names, so that both live until the end.
        embedded, placed = self.embed(ids), self.place(positions)
        x = embedded + placed
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        logits = self.head(x)
        return logits, F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1), ignore_index=-1)


def _texts(size: int, vocabulary: int, tokens: int) -> Callable[[], tuple[Tensor, Tensor]]:
    def draw() -> tuple[Tensor, Tensor]:
        both = (torch.randint(0, vocabulary, (size, tokens)) for _ in range(2))
        ids, targets = (each.pin_memory().to(DEVICE, non_blocking=True) for each in both)
        return ids, targets

    return draw


def gpt(size: int) -> Step:
    """Train GPT-2 with bfloat16 autocast, two microbatches a step, after an evaluation of one batch of each split."""
    model, draw = Gpt().to(DEVICE), _texts(size, VOCABULARY, TOKENS)
    groups = [[p for p in model.parameters() if (p.dim() > 1) is decays] for decays in (True, False)]
    decay = ({"params": group, "weight_decay": 0.1 * (group is groups[0])} for group in groups)
    optimizer = torch.optim.AdamW(decay, lr=6e-4, betas=(0.9, 0.95), fused=True)
    context = torch.autocast(DEVICE, torch.bfloat16)
    batch = draw()
    # What a step leaves behind lives until the next one has its own.
    kept: list[Tensor] = []
    model.eval()
    _evaluate(model, draw, context)
    model.train()

    def step() -> None:
        nonlocal batch
        for _ in range(ACCUMULATION):
            with context:
                kept[:] = model(*batch)
                kept[1] = kept[1] / ACCUMULATION
            batch = draw()
            kept[1].backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        kept[1].item()

    return step


@torch.no_grad()
def _evaluate(model: nn.Module, draw: Callable[[], tuple[Tensor, Tensor]], context: torch.autocast) -> None:
    for _ in range(2):
        batch = draw()
        with context:
            made = model(*batch)
        made[1].item()


def evaluate(size: int) -> Step:
    """Run GPT-2 forward without gradients in bfloat16."""
    model, draw = Gpt().to(DEVICE, torch.bfloat16).eval(), _texts(size, VOCABULARY, TOKENS)

    @torch.no_grad()
    def step() -> None:
        model(*draw())[1].item()

    return step


class Bottleneck(nn.Module):
    """The block of a ResNet-50."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        shapes = ((inputs, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1))
        self.parts = nn.ModuleList(_convolution(*shape) for shape in shapes)
        same = inputs == 4 * width and stride == 1
        self.skip = nn.Identity() if same else _convolution(inputs, 4 * width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Add the input to what three convolutions make of it."""
        made = F.relu(self.parts[1](F.relu(self.parts[0](x), inplace=True)), inplace=True)
        return F.relu(self.parts[2](made) + self.skip(x), inplace=True)


def _convolution(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


def conv(size: int) -> Step:
    """Train a ResNet-50 with float16 autocast and a scaler."""
    blocks, inputs = [], 64
    for index, count in enumerate((3, 4, 6, 3)):
        for position in range(count):
            blocks.append(Bottleneck(inputs, 64 << index, 2 if index and not position else 1))
            inputs = 256 << index
    stem = nn.Sequential(_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))
    model = nn.Sequential(stem, *blocks, head).to(DEVICE)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.amp.GradScaler(DEVICE)

    def step() -> None:
        images, labels = torch.rand(size, 3, 224, 224).to(DEVICE), torch.randint(0, 1000, (size,)).to(DEVICE)
        with torch.autocast(DEVICE, torch.float16):
            loss = F.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return step


class Adapted(nn.Module):
    """A frozen linear layer with a product of two narrow ones beside it."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add both."""
        return self.base(x) + self.up(self.down(x))


class DecoderBlock(nn.Module):
    """A block of a Llama with grouped keys; queries and values have adapters."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.width, self.heads, self.groups = width // heads, heads, groups
        self.norms = nn.ModuleList(nn.RMSNorm(width).requires_grad_(False) for _ in range(2))
        keys = groups * self.width
        self.query, self.value = Adapted(width, width, 16), Adapted(width, keys, 16)
        frozen = ((width, keys), (width, width), (width, hidden), (width, hidden), (hidden, width))
        layers = (nn.Linear(*shape, bias=False).requires_grad_(False) for shape in frozen)
        self.key, self.out, self.gate, self.grow, self.shrink = layers

    def forward(self, x: Tensor) -> Tensor:
        """Add attention and the gated net."""
        normed = self.norms[0](x)
        query, key, value = (
            layer(normed).view(*x.shape[:2], -1, self.width).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        key, value = (each.repeat_interleave(self.heads // self.groups, dim=1) for each in (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        normed = self.norms[1](x)
        return x + self.shrink(F.silu(self.gate(normed)) * self.grow(normed))


def _adapters(size: int, *, shape: tuple[int, ...], vocabulary: int, tokens: int, builds_there: bool) -> Step:
    layers, *sizes = shape
    was = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE if builds_there else "cpu"):
        embed = nn.Embedding(vocabulary, sizes[0]).requires_grad_(False)
        blocks = nn.ModuleList(DecoderBlock(*sizes) for _ in range(layers))
        head = nn.Linear(sizes[0], vocabulary, bias=False).requires_grad_(False)
    torch.set_default_dtype(was)
    model = nn.ModuleList([embed, blocks, head]).to(DEVICE)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])

    def step() -> None:
        ids = torch.randint(0, vocabulary, (size, tokens)).to(DEVICE)
        x = embed(ids)
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        F.cross_entropy(head(x).flatten(0, 1).float(), ids.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def lora(size: int) -> Step:
    """Train adapters on a decoder of 1.1 billion parameters, checkpointed, in bfloat16."""
    return _adapters(size, shape=(22, 2048, 32, 4, 5632), vocabulary=32_000, tokens=1024, builds_there=True)


def lora8b(size: int) -> Step:
    """Train adapters on a decoder of 8 billion parameters with 2,048 tokens, initialised on the device."""
    return _adapters(size, shape=(32, 4096, 32, 8, 14336), vocabulary=128_256, tokens=2048, builds_there=True)


def lora8b_host(size: int) -> Step:
    """Do the same, initialised on the CPU and moved to the device."""
    return _adapters(size, shape=(32, 4096, 32, 8, 14336), vocabulary=128_256, tokens=2048, builds_there=False)


def lstm(size: int) -> Step:
    """Train a language model of two LSTM layers in float32."""
    embed, cells, head = nn.Embedding(10_000, 650), nn.LSTM(650, 650, 2, dropout=0.5), nn.Linear(650, 10_000)
    model = nn.ModuleList([embed, cells, head]).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        ids = torch.randint(0, 10_000, (70, size)).to(DEVICE)
        made, _ = cells(embed(ids))
        F.cross_entropy(head(made).flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


JOBS: dict[str, Callable[[int], Step]] = {
    job.__name__: job for job in (gpt, evaluate, conv, lora, lora8b, lora8b_host, lstm)
}


def main() -> None:
    """Run a job for a few steps and print what torch says that it took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--steps", type=int, default=NUM_STEPS)
    options = parser.parse_args()
    step = JOBS[options.job](options.batch_size)
    for _ in range(options.steps):
        step()
    said = {
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "seconds": round(time.monotonic() - _BEGAN, 2),
        "host_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
