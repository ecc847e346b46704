"""How fast a phantom is: a launch beside an empty call, and a training step beside torch's dispatch on its meta device.

    python benchmarks/phantom_speed.py          # writes results/phantom-speed.json

Both sides of a ratio run in turn in one process, on torch's CUDA build (`make .venv/.installed-cuda`).
"""

from __future__ import annotations

import ctypes
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
CUDA = Path(sys.prefix) / "cuda"
RESULT = HERE / "results" / "phantom-speed.json"
NUM_CALLS = 1_000_000
NUM_ROUNDS = 7
STEPS_IN_ROUND = 5
# Sizes of a GPT: layers, width, heads, vocabulary, tokens.
SIZES = {"gpt2": (12, 768, 12, 50_257, 1024), "small": (4, 256, 4, 5_000, 128)}
MICROBATCH = 4


def main() -> None:
    """Start the measurements on a phantom and keep what they print."""
    from brim.devices.catalog import find_gpu
    from brim.phantom import Phantoms, read_torch

    with Phantoms([find_gpu("rtx-3090")], torch=read_torch(CUDA / "torch")) as phantoms:
        environment = phantoms.environment()
        environment["PYTHONPATH"] = f"{CUDA}:{environment.get('PYTHONPATH', '')}"
        words = [sys.executable, __file__, "measure"]
        done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(done.stdout)
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def measure() -> dict[str, object]:
    """Measure on the phantom that this process runs on."""
    import torch

    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "launch": launches(),
        "steps": {name: steps(*sizes) for name, sizes in SIZES.items()},
    }


def launches() -> dict[str, float]:
    """Return the microseconds of a launch, and of a call of the same library that does nothing."""
    library = ctypes.CDLL(None)
    launch, empty = library.cudaLaunchKernelExC, library.cudaProfilerStop
    launch.argtypes = empty.argtypes = [ctypes.c_void_p] * 3
    times: dict[str, list[float]] = {"launch_us": [], "empty_us": []}
    for _ in range(NUM_ROUNDS):
        for name, function in (("launch_us", launch), ("empty_us", empty)):
            began = time.perf_counter()
            for _ in range(NUM_CALLS // NUM_ROUNDS):
                function(None, None, None)
            times[name].append((time.perf_counter() - began) / (NUM_CALLS // NUM_ROUNDS) * 1e6)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {**medians, "more_us": medians["launch_us"] - medians["empty_us"]}


def steps(layers: int, width: int, heads: int, vocabulary: int, tokens: int) -> dict[str, float]:
    """Return the seconds of a step on the phantom and on torch's meta device, and their ratio."""
    run = {device: _step(device, layers, width, heads, vocabulary, tokens) for device in ("cuda", "meta")}
    times: dict[str, list[float]] = {"cuda": [], "meta": []}
    for step in run.values():
        step()
    for _ in range(NUM_ROUNDS):
        for device, step in run.items():
            began = time.perf_counter()
            for _ in range(STEPS_IN_ROUND):
                step()
            times[device].append((time.perf_counter() - began) / STEPS_IN_ROUND)
    seconds = {device: statistics.median(values) for device, values in times.items()}
    return {
        "phantom_seconds": seconds["cuda"],
        "meta_seconds": seconds["meta"],
        "ratio": statistics.median(a / b for a, b in zip(times["cuda"], times["meta"], strict=True)),
    }


def _step(device: str, layers: int, width: int, heads: int, vocabulary: int, tokens: int) -> Callable[[], None]:
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy, scaled_dot_product_attention

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            parts = self.attend(self.norms[0](x)).view(*x.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4)
            mixed = scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).reshape(x.shape)
            x = x + self.project(mixed)
            return x + self.feed(self.norms[1](x))

    with torch.device(device):
        embed, position = nn.Embedding(vocabulary, width), nn.Embedding(tokens, width)
        blocks, norm = nn.Sequential(*(Block() for _ in range(layers))), nn.LayerNorm(width)
        ids = torch.zeros(MICROBATCH, tokens, dtype=torch.int64)
        places = torch.arange(tokens)
    optimizer = torch.optim.AdamW(nn.ModuleList([embed, position, blocks, norm]).parameters(), foreach=True)

    def step() -> None:
        logits = norm(blocks(embed(ids) + position(places))) @ embed.weight.T
        cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        print(json.dumps(measure()))
    else:
        main()
