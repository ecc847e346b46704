"""Scripts as people write them, with the libraries that they use, on phantom GPUs."""

import json
import re
import sys
from pathlib import Path

import pytest
from tests.phantoms import run_on_phantom, with_cuda_torch

SCRIPTS = Path(__file__).parents[2] / "scripts" / "phantom"
CONTEXT_BYTES = 400 * 2**20

# Runs scripts one after another, as if each were alone, and prints the last line of each.
_RUNNER = """
import contextlib, gc, io, json, runpy, sys, torch

for words in json.loads(sys.argv[1]):
    sys.argv = words
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(words[0], run_name="__main__")
    print(printed.getvalue().splitlines()[-1], flush=True)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
"""


def run_scripts(*commands: str, **settings: object) -> list[list[int]]:
    """Return the whole numbers in the last line that each script prints."""
    words = [command.split() for command in commands]
    given = json.dumps([[str(SCRIPTS / script), *rest] for script, *rest in words])
    done = run_on_phantom(_RUNNER, given, **settings)
    assert done.exit_code == 0, done.errors[-3000:]
    assert not [event for event in done.events if event.kind in ("absent", "private")]
    return [[int(number) for number in re.findall(r"\b\d+\b", line)] for line in done.output.splitlines()]


def test_plain_loops_run_in_every_precision_with_checkpoints_workers_and_graphs():
    plain, bfloat, half, whole, reentrant, checkpointed, loaded, graphed = run_scripts(
        *(f"precisions.py --batch_size=16384 --steps=3 --precision={p}" for p in ("float32", "bfloat16", "float16")),
        *(f"checkpointed.py --batch_size=4096 --steps=2 --checkpoint={c}" for c in ("none", "reentrant", "not")),
        "loaded.py --batch_size=64 --steps=4",
        "graphed.py --batch_size=256 --steps=4",
    )
    # Two hidden activations of 4,096 numbers a sample, which autocast halves.
    assert plain[0] - bfloat[0] >= 2 * 16384 * 4096 * 2
    assert half[0] == pytest.approx(bfloat[0], abs=4096)
    assert plain[1] == bfloat[1] == half[1] == 4  # the scaler lets every step pass
    assert whole[0] > 2 * max(reentrant[0], checkpointed[0])
    assert loaded[1:] == [2, 3, 4]  # the labels of samples 192 to 194, read back from the device
    assert graphed[1] > 1.5 * graphed[0]  # a graph's memory is apart from that of its warm-up


def test_activations_of_a_convolutional_net_are_counted_to_the_byte():
    done = run_on_phantom(
        "import torch\n"
        "from torch import nn\n"
        "net = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)).cuda()\n"
        "images = torch.empty(64, 3, 32, 32, device='cuda')\n"
        "net(images)\n"
        "before = torch.cuda.memory_allocated()\n"
        "pooled = net(images)\n"
        "print(torch.cuda.memory_allocated() - before)\n"
    )
    large, small = 64 * 32 * 32 * 32, 64 * 32 * 16 * 16
    statistics = 2 * 512  # of the batch, kept for the backward pass, each in a block of its own
    # What the convolution and the ReLU made, what was pooled, and where its maxima were.
    assert done.output == f"{2 * large * 4 + small * 4 + small * 8 + statistics}\n", done.errors


@pytest.mark.parametrize("gpu", ["t4", "rtx-3090", "h100-sxm"])
def test_attention_runs_in_the_kernels_that_torch_chooses_for_a_card(gpu):
    done = run_on_phantom(
        "import torch\n"
        "from torch.nn import functional as F\n"
        "kind = {'device': 'cuda', 'dtype': torch.bfloat16, 'requires_grad': True}\n"
        "def make(heads): return torch.zeros(2, heads, 64, 64, **kind)\n"
        "mask = torch.ones(2, 1, 64, 64, device='cuda', dtype=torch.bool)\n"
        "choices = [{}, {'is_causal': True}, {'attn_mask': mask}, {'enable_gqa': True}, {'dropout_p': 0.1}]\n"
        "for choice in choices:\n"
        "    query, key, value = make(4), *(make(2 if 'enable_gqa' in choice else 4) for _ in range(2))\n"
        "    F.scaled_dot_product_attention(query, key, value, **choice).sum().backward()\n"
        "    with torch.no_grad():\n"
        "        F.scaled_dot_product_attention(query, key, value, **choice)\n"
        "    print(query.grad.shape == query.shape)\n",
        gpus=(gpu,),
    )
    assert done.output.split() == ["True"] * 5, done.errors
    assert not done.events


def test_settings_of_the_allocator_are_honoured():
    settings = ["", "expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:4"]
    settings.append("garbage_collection_threshold:0.5")
    done = run_on_phantom((SCRIPTS / "settings.py").read_text(), *settings)
    reserved = {name: [float(value) for value in re.findall(r" ([\d.]+)", rest)] for name, rest in _parts(done.output)}
    joins, splits, rounds, collects = reserved["default"]
    # Two cached blocks of 1 GiB are no room for 2, and half of one is room for a half.
    assert (joins, splits, collects) == (4, 1, 18)
    assert rounds == pytest.approx(1.1, abs=1e-3)
    assert reserved["expandable_segments:True"][0] == pytest.approx(2, abs=0.02)
    assert reserved["expandable_segments:True"][3] == pytest.approx(16, abs=0.02)
    assert reserved["max_split_size_mb:128"][1] == 1.5
    assert reserved["roundup_power2_divisions:4"][2] == 1.25
    assert reserved["garbage_collection_threshold:0.5"][3] < 11.85


def _parts(output: str) -> list[tuple[str, str]]:
    return [tuple(line.split(": ", 1)) for line in output.splitlines()]


def test_the_asynchronous_allocator_is_counted_and_fails_where_the_card_is_full():
    done = run_on_phantom(
        "import torch\n"
        "first = torch.empty(3 * 2**30, dtype=torch.uint8, device='cuda')\n"
        "small = [torch.empty(2**20 + 512, dtype=torch.uint8, device='cuda') for _ in range(64)]\n"
        "try:\n"
        "    torch.empty(30 * 2**30, dtype=torch.uint8, device='cuda')\n"
        "except torch.cuda.OutOfMemoryError:\n"
        "    print('refused')\n",
        context=CONTEXT_BYTES,
        environment={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    )
    assert done.output == "refused\n", done.errors
    (usage,) = done.usages
    assert usage.allocated_peak_bytes == 3 * 2**30 + 64 * (2**20 + 512)
    assert usage.peak_bytes - usage.allocated_peak_bytes - CONTEXT_BYTES < 2 * 2**20
    assert usage.num_refused


def test_managed_memory_gives_way_to_what_needs_its_place():
    done = run_on_phantom(
        "import ctypes, torch\n"
        "torch.cuda.init()\n"
        "start, runtime = ctypes.c_void_p(), ctypes.CDLL(None)\n"
        "assert runtime.cudaMallocManaged(ctypes.byref(start), ctypes.c_size_t(20 * 2**30), 1) == 0\n"
        "def used():\n"
        "    free, total = torch.cuda.mem_get_info()\n"
        "    return (total - free) / 2**30\n"
        "print(used())\n"
        "held = torch.empty(10 * 2**30, dtype=torch.uint8, device='cuda')\n"
        "print(round(used(), 1))\n"
        "runtime.cudaFree(start)\n"
        "print(used())\n",
        context=0,
    )
    assert done.output.split() == ["20.0", "23.7", "10.0"], done.errors


def test_what_is_not_there_ends_with_its_name():
    done = run_on_phantom(
        "import ctypes, torch\n"
        "square, csr = torch.ones(8, 8, device='cuda'), torch.eye(8).to_sparse_csr().cuda()\n"
        "linalg = torch.linalg\n"
        "of_square = [torch.fft.rfft, linalg.svd, linalg.qr, linalg.cholesky, linalg.inv, linalg.eigh, csr.matmul]\n"
        "calls = [(each, square) for each in of_square]\n"
        "for call, argument in [*calls, (csr.matmul, csr), (csr.matmul, square[0])]:\n"
        "    try:\n"
        "        print('silent', call(argument))\n"
        "    except RuntimeError as error:\n"
        "        print(type(error).__name__)\n"
        "table = ctypes.c_void_p()\n"
        "driver = ctypes.CDLL('libcuda.so.1')\n"
        "print(driver.cuGetExportTable(ctypes.byref(table), b'0123456789abcdef'), table.value)\n"
    )
    assert done.output.splitlines() == ["RuntimeError"] * 9 + ["801 None"], done.errors
    for name in ("cufft", "cusolverDnXgeqrf", "cusolverDnXpotrf", "cusolverDnXsyev", "cusparseSpMM", "cusparseSpMV"):
        assert f"brim: the job calls {name}" in done.errors
    assert "carries a CUDA runtime of its own" in done.errors


def test_torchvision_runs_with_its_renamed_runtime_and_without_nvidia_s_decoder():
    done = run_on_phantom(
        "import torch, torchvision\n"
        "from torchvision import io, ops\n"
        "boxes = torch.rand(100, 4, device='cuda')\n"
        "print(tuple(ops.roi_align(torch.ones(1, 3, 64, 64, device='cuda'), [boxes], 7).shape))\n"
        "alike = torch.tensor([[0., 0, 1, 1]] * 9)\n"
        "print(len(ops.nms(boxes, boxes[:, 0], 0.5)), len(ops.nms(alike, torch.rand(9), 0.5)))\n"
        "coded = io.encode_jpeg(torch.zeros(3, 32, 32, dtype=torch.uint8))\n"
        "print(tuple(io.decode_jpeg(coded).shape))\n"
        "loaded = {line.split()[-1] for line in open('/proc/self/maps') if 'nvjpeg' in line or 'cudart' in line}\n"
        "print([path for path in loaded if 'brim-phantom' not in path])\n"
        "try:\n"
        "    io.decode_jpeg(coded, device='cuda')\n"
        "except RuntimeError as error:\n"
        "    print('nvjpeg' in str(error))\n"
    )
    assert done.output.splitlines() == ["(100, 3, 7, 7)", "100 1", "(3, 32, 32)", "[]", "True"], done.errors
    assert "brim: the job calls nvjpeg" in done.errors


@pytest.mark.slow
def test_models_of_timm_and_torchvision_train():
    small, large = run_scripts(
        "pictured.py --batch_size=8 --steps=2 --model=timm:vit_tiny_patch16_224",
        "pictured.py --batch_size=32 --steps=2 --model=torchvision:resnet18",
    )
    assert 0 < small[0] < large[0]


@pytest.mark.slow
def test_trainers_of_transformers_accelerate_and_lightning_run():
    small, large, accelerated, lightened = run_scripts(
        *(
            f"trained.py --per_device_train_batch_size={size} --bf16 --gradient_checkpointing "
            "--gradient_accumulation_steps=2 --max_steps=2 --disable_tqdm=True"
            for size in (8, 16)
        ),
        "accelerated.py --batch_size=64 --steps=2",
        "lightened.py --batch_size=64 --steps=2",
    )
    logits = 256 * 50_257 * 4  # of one sample, in float32
    assert large[0] - small[0] > 8 * logits
    # The same net, the same optimizer, in the same precision.
    assert accelerated[0] == pytest.approx(lightened[0], rel=0.01)


@pytest.mark.slow
def test_adapters_and_weights_in_4_and_8_bits_train_with_an_optimizer_in_8_bits():
    adapted, four, eight = run_scripts(
        "adapted.py --batch_size=2 --steps=2",
        "quantized.py --batch_size=2 --steps=2",
        "quantized.py --batch_size=2 --steps=2 --bits=8 --optimizer=AdamW8bit",
    )
    assert adapted[2] == 2 * 4 * 7  # two matrices for each of seven layers in four blocks
    num_weights = 4 * (4 * 1024**2 + 3 * 1024 * 2816)
    kept_whole = 2 * 4096 * 1024 * 2  # the embedding and the head, in bfloat16
    # In 4 bits, every 64 weights share a scale, which is kept in 8.
    assert four[0] == pytest.approx(kept_whole + num_weights / 2 + num_weights / 64, rel=0.04)
    assert eight[0] == pytest.approx(kept_whole + num_weights, rel=0.04)
    assert four[1] < eight[1]


@pytest.mark.slow
def test_paged_optimizers_keep_their_state_outside_of_torch():
    done = run_on_phantom(
        "import bitsandbytes as bnb, torch\n"
        "for name in ('PagedAdamW32bit', 'AdamW8bit'):\n"
        "    layer = torch.nn.Linear(4096, 4096, bias=False, device='cuda')\n"
        "    optimizer = getattr(bnb.optim, name)(layer.parameters())\n"
        "    layer(torch.ones(8, 4096, device='cuda')).sum().backward()\n"
        "    before, (free, _) = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()\n"
        "    optimizer.step()\n"
        "    print((torch.cuda.memory_allocated() - before) // 2**20, (free - torch.cuda.mem_get_info()[0]) // 2**20)\n"
    )
    paged, inside = (list(map(int, line.split())) for line in done.output.splitlines())
    assert paged == [0, 128], done.errors
    assert inside[0] == 32


@pytest.mark.slow
def test_compiled_models_run_with_triton_s_kernels(tmp_path):
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    eager, default, replayed = run_scripts(
        *(f"compiled.py --batch_size=16 --steps=4 --mode={mode}" for mode in ("eager", "default", "reduce-overhead")),
        environment={**caches, "TORCHINDUCTOR_COMPILE_THREADS": "1"},
    )
    assert default[0] < eager[0]  # fused: fewer activations are kept
    assert replayed[1] > default[1]  # graphs keep pools of their own
    assert list(tmp_path.glob("triton/*/*.cubin"))


@pytest.mark.slow
def test_text_is_generated_to_its_longest_with_either_cache():
    dynamic, static = run_scripts(
        "generated.py --batch_size=4 --steps=1 --new=16",
        "generated.py --batch_size=4 --steps=1 --new=16 --cache=static",
    )
    assert dynamic[:2] == static[:2] == [4, 48]


@pytest.mark.slow
def test_a_capture_belongs_to_what_is_predicted_of_a_cuda_graph(brim_cli):
    script = str(SCRIPTS / "graphed.py")
    words = ("--gpu", "t4", "--microbatch", "256", "--json", "--", sys.executable, script, "--batch_size={batch}")
    run = brim_cli("predict", *words, env=with_cuda_torch())
    assert run.returncode == 0, run.stderr
    (peak,) = json.loads(run.stdout)["peaks"]
    (alone,) = run_scripts("graphed.py --batch_size=256 --steps=2", gpus=("t4",))
    assert (peak["allocated_bytes"], peak["reserved_bytes"]) == tuple(alone[:2])
