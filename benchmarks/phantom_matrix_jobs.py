"""Small jobs that each use one part of torch's CUDA, run by phantom_matrix.py on a phantom with every torch.

python phantom_matrix_jobs.py NAME ...      # a line of JSON when each begins, and one when it has ended
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

MIB = 2**20
# Of an error's message.
MOST_LETTERS = 300
WIDTH, HEADS, TOKENS, VOCABULARY, BATCH = 256, 4, 256, 8_192, 8


class Block(nn.Module):
    """A layer of a GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.parts, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, then feed forward."""
        parts = self.parts(self.norm(x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).reshape(x.shape))
        return x + self.feed(x)


class Gpt(nn.Module):
    """A small GPT."""

    def __init__(self, *, checkpoints: bool = False) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.checkpoints = checkpoints

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the loss of predicting the same tokens."""
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


def tokens() -> torch.Tensor:
    """Return a batch."""
    return torch.randint(0, VOCABULARY, (BATCH, TOKENS)).cuda()


def train(model: nn.Module, dtype: torch.dtype | None = None, *, steps: int = 3, **how: bool) -> None:
    """Train for some steps; in 16 bits with a scaler, in bfloat16 without."""
    optimizer = torch.optim.AdamW(model.parameters(), **how)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16)
    for _ in range(steps):
        with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = model(tokens())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    loss.item()


def properties() -> None:
    """What the device says of itself."""
    said = torch.cuda.get_device_properties(0)
    assert (said.major, said.minor, said.multi_processor_count) == (8, 6, 82), said
    assert "3090" in torch.cuda.get_device_name(0)
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total == said.total_memory
    assert torch.backends.cudnn.version() // 10_000 == 9
    assert torch.cuda.nccl.version() >= (2, 20)
    torch.ones(1, device="cuda")


def linear_algebra() -> None:
    """Products of every kind that cuBLAS has for torch."""
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64):
        a = torch.ones(4, 64, 64, device="cuda", dtype=dtype)
        _ = a @ a, a[0] @ a[0], torch.addmm(a[0], a[0], a[0]), a[0] @ a[0, 0], torch.dot(a[0, 0], a[0, 0])
    torch.nn.functional.linear(a.real.half()[0], a.real.half()[0], a.real.half()[0, 0])
    torch._int_mm(torch.ones(32, 32, device="cuda", dtype=torch.int8), torch.ones(32, 32, device="cuda").char())


def operators() -> None:
    """Kernels that ask for room of their own: sorting, scans, selections; a number beside a tensor."""
    x = torch.randn(1000, 100, device="cuda")
    x.sort(), x.topk(5), x.cumsum(0), x.argsort(descending=True), x.median(), x.std(), x.softmax(-1)
    torch.randperm(10_000, device="cuda"), torch.bincount(x.long().flatten(), minlength=8), torch.histc(x)
    F.embedding_bag(x.long().clamp(0, 9), torch.ones(10, 8, device="cuda"))
    x.scatter_add(0, x.long().clamp(0, 9), x), x.index_select(0, torch.arange(5, device="cuda"))
    # Divides by more than float16 can hold.
    torch.ones(70_000, dtype=torch.float16, device="cuda", requires_grad=True).mean().backward()


def sampling() -> None:
    """Random draws that check their weights."""
    torch.multinomial(torch.rand(8, 100, device="cuda").softmax(-1), 1)
    torch.bernoulli(torch.rand(100, device="cuda"))


def convolutions() -> None:
    """A conv net, forward and backward, also with channels last and in 16 bits."""
    for channels_last in (False, True):
        layers = (nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2))
        net = nn.Sequential(*layers, nn.ConvTranspose2d(64, 8, 2, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        shape = torch.channels_last if channels_last else torch.contiguous_format
        net = net.cuda().to(memory_format=shape)
        for dtype in (torch.float32, torch.float16):
            with torch.autocast("cuda", dtype, enabled=dtype is not torch.float32):
                x = torch.randn(8, 3, 64, 64).cuda().to(memory_format=shape)
                net(x).sum().backward()
    nn.Conv1d(4, 8, 3).cuda()(torch.randn(2, 4, 32).cuda()).sum().backward()
    nn.Conv3d(4, 8, 3).cuda()(torch.randn(2, 4, 8, 8, 8).cuda()).sum().backward()
    torch.backends.cudnn.benchmark = True
    nn.Conv2d(3, 8, 3).cuda()(torch.randn(2, 3, 32, 32).cuda()).sum().backward()
    torch.backends.cudnn.benchmark = False


def recurrent() -> None:
    """An LSTM and a GRU of two layers with dropout, whole and packed."""
    for kind in (nn.LSTM, nn.GRU):
        net = kind(64, 128, num_layers=2, dropout=0.1, batch_first=True, bidirectional=True).cuda()
        x = torch.randn(8, 30, 64).cuda()
        net(x)[0].sum().backward()
        net(nn.utils.rnn.pack_padded_sequence(x, torch.arange(30, 22, -1), batch_first=True))[0].data.sum().backward()


def attention(backend: SDPBackend) -> Callable[[], None]:
    """Return a job of one kind of attention."""

    def attend() -> None:
        parts = [torch.randn(4, 8, 256, 64, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3)]
        with sdpa_kernel(backend):
            F.scaled_dot_product_attention(*parts, is_causal=True).sum().backward()

    return attend


def attention_chosen() -> None:
    """Attention in the kernel that torch chooses for the card."""
    for how in ("plain", "causal", "masked", "dropout"):
        parts = [torch.randn(4, 8, 256, 64, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3)]
        mask = torch.ones(4, 1, 256, 256, device="cuda", dtype=torch.bool) if how == "masked" else None
        dropout = 0.1 if how == "dropout" else 0.0
        F.scaled_dot_product_attention(*parts, mask, dropout, how == "causal").sum().backward()


def optimizers() -> None:
    """Optimizers by loops, for many tensors at once, and fused."""
    for how in ({"foreach": False}, {"foreach": True}, {"fused": True}):
        train(nn.Sequential(Gpt()).cuda(), steps=2, **how)


def loader() -> None:
    """Workers that fill pinned batches."""
    data = TensorDataset(torch.randn(64, 100))
    batches = [x.to("cuda", non_blocking=True) for (x,) in DataLoader(data, 16, num_workers=2, pin_memory=True)]
    assert len(batches) == 4
    assert torch.equal(torch.cat([each.cpu() for each in batches]), data.tensors[0])


def streams() -> None:
    """Streams, events and memory that crosses between them."""
    side, done = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    started = torch.cuda.Event(enable_timing=True)
    started.record()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        x = torch.randn(1000, 1000, device="cuda") @ torch.randn(1000, 1000, device="cuda")
        done.record()
    x.record_stream(torch.cuda.current_stream())
    torch.cuda.current_stream().wait_event(done)
    torch.cuda.synchronize()
    assert done.query()
    started.elapsed_time(done)


def graphs() -> None:
    """A training step that is captured and replayed."""
    net, x = nn.Linear(512, 512).cuda(), torch.randn(64, 512, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        net(x).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = net(x).sum()
        loss.backward()
    for _ in range(3):
        graph.replay()
    torch.cuda.make_graphed_callables(nn.Linear(512, 512).cuda(), (x,))(x).sum().backward()


def out_of_memory() -> None:
    """A request that is refused, and work that goes on after it."""
    try:
        torch.empty(80 * 2**30, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        assert "80.00 GiB" in str(error)  # noqa: PT017  not a test of pytest
    else:
        raise AssertionError("80 GiB fitted")
    torch.ones(MIB, device="cuda")


def snapshot() -> None:
    """The record that torch keeps of its memory."""
    torch.cuda.memory._record_memory_history(max_entries=1000)
    x = torch.empty(5 * MIB, device="cuda")
    found = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    assert sum(segment["allocated_size"] for segment in found["segments"]) >= x.nbytes
    assert any(entry["size"] >= x.nbytes for trace in found["device_traces"] for entry in trace)


def profiler() -> None:
    """What torch's profiler hears of memory."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        x = torch.empty(5 * MIB, device="cuda")
        y = torch.empty(MIB)
    events = profile.key_averages()
    assert sum(event.self_device_memory_usage for event in events) == x.nbytes
    assert sum(event.self_cpu_memory_usage for event in events) >= y.nbytes


def allocator() -> None:
    """Training by the allocator that the environment chooses, with tensors that grow."""
    train(Gpt().cuda(), torch.bfloat16)
    for size in range(1, 200, 20):
        torch.empty(size * MIB, device="cuda")
    torch.cuda.empty_cache()


def compiled() -> None:
    """A net by torch.compile, forward and backward, by Triton's kernels."""
    net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 8)).cuda()
    run = torch.compile(net)
    for _ in range(3):
        run(torch.randn(32, 64, device="cuda")).square().mean().backward()


def _ranks() -> int:
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    return rank


def ddp() -> None:
    """Training by two processes that share gradients."""
    rank = _ranks()
    train(nn.parallel.DistributedDataParallel(Gpt().cuda(), device_ids=[rank]), torch.bfloat16)
    dist.barrier()
    dist.destroy_process_group()


def fsdp2() -> None:
    """Training by two processes that share parameters."""
    from torch.distributed.fsdp import fully_shard

    _ranks()
    model = Gpt().cuda()
    for block in model.blocks:
        fully_shard(block)
    train(fully_shard(model), torch.bfloat16)
    dist.destroy_process_group()


JOBS: dict[str, Callable[[], None]] = {
    "properties": properties,
    "train-float32": lambda: train(Gpt().cuda()),
    "train-bfloat16": lambda: train(Gpt().cuda(), torch.bfloat16),
    "train-float16": lambda: train(Gpt().cuda(), torch.float16),
    "linear-algebra": linear_algebra,
    "operators": operators,
    "sampling": sampling,
    "convolutions": convolutions,
    "recurrent": recurrent,
    "attention-chosen": attention_chosen,
    "attention-flash": attention(SDPBackend.FLASH_ATTENTION),
    "attention-efficient": attention(SDPBackend.EFFICIENT_ATTENTION),
    "attention-math": attention(SDPBackend.MATH),
    "checkpointing": lambda: train(Gpt(checkpoints=True).cuda(), torch.bfloat16),
    "optimizers": optimizers,
    "loader": loader,
    "streams": streams,
    "graphs": graphs,
    "out-of-memory": out_of_memory,
    "snapshot": snapshot,
    "profiler": profiler,
    "allocator": allocator,
    "compiled": compiled,
    "ddp": ddp,
    "fsdp2": fsdp2,
}


def run(name: str) -> dict[str, object]:
    """Run a job; return what failed, or the peaks that torch counted."""
    torch.cuda.reset_peak_memory_stats()
    try:
        JOBS[name]()
        torch.cuda.synchronize()
        peaks = {
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
        }
        return {"job": name, "failed": None, **peaks}
    except Exception as error:  # noqa: BLE001  whatever fails is what is asked
        said = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
        return {"job": name, "failed": f"{type(error).__name__}: {said[:MOST_LETTERS]}"}
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def main() -> None:
    """Run the jobs that are named, in this process."""
    torch.manual_seed(0)
    is_first = os.environ.get("RANK", "0") == "0"
    with tempfile.TemporaryDirectory() as folder:
        # What is compiled for one torch must not be taken for another's.
        os.environ.update(TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor", TRITON_CACHE_DIR=f"{folder}/triton")
        for name in sys.argv[1:]:
            if is_first:
                print(json.dumps({"began": name}), flush=True)
            told = run(name)
            if is_first:
                print(json.dumps(told), flush=True)
            elif told["failed"]:
                sys.exit(str(told["failed"]))


if __name__ == "__main__":
    main()
