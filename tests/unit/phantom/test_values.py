"""What can be read from a device on which no kernel runs, and what is taken where that decides a size or a loop."""

import json

import pytest
from tests.phantoms import run_on_phantom

# Each prints a line of JSON: what an expression gives on the phantom, and what the CPU says.
COMPARE = """
import json, torch
def both(make):
    print(json.dumps([make("cuda"), make("cpu")]))
def x(device): return torch.arange(10, device=device)
def m(device): return torch.tensor([[1, 0, 1], [1, 1, 1]], device=device)
both(lambda d: x(d).tolist())
both(lambda d: (x(d) > 4).sum().item())
both(lambda d: x(d)[x(d) > 4].tolist())
both(lambda d: [m(d).all().item(), m(d).bool().any().item(), (m(d) == 0).nonzero().tolist()])
both(lambda d: [m(d).cumsum(1).tolist(), m(d).sum(1).max().item(), m(d).flip(1).tolist()])
both(lambda d: torch.cat([x(d), x(d) * 2 - 1]).to(torch.int32).tolist())
both(lambda d: torch.where(x(d) > 5, x(d), 0).tolist())
both(lambda d: [torch.unique(x(d) // 2).tolist(), torch.bincount(x(d) % 3).tolist()])
both(lambda d: torch.repeat_interleave(torch.tensor([1, 2, 3], device=d)).tolist())
both(lambda d: torch.nn.functional.one_hot(torch.tensor([1, 0, 2], device=d), 3).tolist())
both(lambda d: x(d).view(2, 5).gather(1, torch.tensor([[0], [2]], device=d)).tolist())
both(lambda d: torch.tril(torch.ones(3, 3, dtype=torch.bool, device=d)).tolist())
def changed(device):
    y = x(device).clone(); y[2:4] = 7; y += 1; y.masked_fill_(y > 8, 0)
    return y.t().tolist()
both(changed)
both(lambda d: torch.isfinite(torch.ones(5, device=d).exp()).all().item())
both(lambda d: torch.randn(5, device=d).isnan().any().item())
both(lambda d: torch.isfinite(torch.zeros(30_000_000, device=d)).all().item())
both(lambda d: torch.tensor(7, device=d).item())
both(lambda d: [(x(d).to(torch.int8) + 300).tolist(), (x(d) + True).tolist(), (x(d) * 2.5).dtype.itemsize])
def half(device): return torch.ones(70_000, dtype=torch.float16, device=device, requires_grad=True)
def of_mean(device):
    y = half(device); y.mean().backward()
    return [y.grad.dtype.itemsize, (half(device) / 70_000).dtype.itemsize, (half(device)[0] / 70_000).dtype.itemsize]
both(of_mean)
"""


def test_whole_numbers_and_truth_values_are_computed():
    done = run_on_phantom(COMPARE)
    assert done.exit_code == 0, done.errors
    lines = [json.loads(line) for line in done.output.splitlines()]
    assert len(lines) == 19
    for on_phantom, on_host in lines:
        assert on_phantom == on_host


def test_sizes_that_depend_on_what_was_never_computed_are_the_largest_and_told_with_the_line(tmp_path):
    script = tmp_path / "sizes.py"
    script.write_text(
        "import torch\n"
        "scores = torch.randn(100, 4, device='cuda')\n"
        "print(scores[scores > 0].shape[0])\n"
        "best = scores.argmax(-1)\n"
        "print(len(torch.unique(best)), [len(torch.where(best == i)[0]) for i in range(2)])\n"
        "print(scores[best != -100].shape)\n"
        "print((scores[1:] <= scores[:-1]).any().item(), (scores >= 0).all().item())\n"
        "print((scores > 0).sum().item())\n"
    )
    done = run_on_phantom("import runpy, sys\nsys.argv[0] = sys.argv[1]\nrunpy.run_path(sys.argv[1])", str(script))
    assert done.output.splitlines() == [
        "400",
        "100 [100, 100]",
        "torch.Size([100, 4])",
        "False True",
        "0",
    ], done.errors
    remarks = [event.text for event in done.events if event.kind == "remark"]
    assert any("sizes.py:3" in remark and "all elements are taken" in remark for remark in remarks)
    assert any("sizes.py:8" in remark and "reads a number that follows from what" in remark for remark in remarks)
    assert any("sizes.py:5" in remark and "taken for different" in remark for remark in remarks)


def test_a_loop_that_only_a_value_ends_is_ended_with_its_line(tmp_path):
    script = tmp_path / "loop.py"
    script.write_text("import torch\nx = torch.randn(4, device='cuda')\nwhile not (x.argmax() == 3):\n    x = x + 1\n")
    done = run_on_phantom("import runpy, sys\nsys.argv[0] = sys.argv[1]\nrunpy.run_path(sys.argv[1])", str(script))
    assert done.exit_code == 1
    assert "loop.py:3" in done.errors
    assert "Bound the loop" in done.errors
    assert [event.kind for event in done.events] == ["loop"]


GENERATE = """
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
config = LlamaConfig(hidden_size=64, num_hidden_layers=2, intermediate_size=128, num_attention_heads=4, vocab_size=100)
model = AutoModelForCausalLM.from_config(config).cuda().eval()
ids = torch.randint(5, 100, (3, 17), device="cuda")
padded = torch.tensor([[0] * 5 + [1] * 12] + [[1] * 17] * 2, device="cuda")
num_passes = 0
def count(*_):
    global num_passes
    num_passes += 1
model.register_forward_hook(count)
drawn, beams = {"do_sample": True}, {"num_beams": 3}
for more in ({}, drawn, {"attention_mask": padded}, beams, drawn | beams):
    num_passes = 0
    made = model.generate(ids, max_new_tokens=20, pad_token_id=0, eos_token_id=[2, 0], **more)
    print(num_passes, *(() if "num_beams" in more else made.shape))
"""


@pytest.mark.slow
def test_a_generation_goes_to_its_longest_text():
    done = run_on_phantom(GENERATE)
    assert done.output.splitlines() == [*["20 3 37"] * 3, *["20"] * 2], done.errors


LARGE = """
import resource, torch
from torch import nn
def resident_mib(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
torch.empty(1, device="cuda")
before = resident_mib()
model = nn.ModuleList(nn.Linear(8192, 8192, bias=False) for _ in range(40))  # 10 GiB
for module in model:
    nn.init.trunc_normal_(module.weight)
    nn.init.kaiming_normal_(module.weight)
saved = {name: torch.randn_like(value) for name, value in model.state_dict().items()}
model.load_state_dict(saved)
model = model.to(torch.bfloat16).cuda()
print(resident_mib() - before < 200, torch.cuda.memory_allocated() == 40 * 8192 * 8192 * 2)
"""


def test_weights_that_are_made_on_the_host_touch_no_pages_of_it():
    done = run_on_phantom(LARGE)
    assert done.output.split() == ["True", "True"], done.errors


ON_HOST = """
import torch
zeros = torch.ones(1 << 20).zero_()
print(zeros.abs().max().item(), zeros.add_(1).sum().item() == 1 << 20)
part = torch.ones(1 << 20)[100:-100]
part.zero_()
print(part._base.sum().item())
real = torch.arange(1 << 20, dtype=torch.float32)
copied = torch.empty(1 << 20).copy_(real)
print(torch.equal(copied, real), torch.randn(100).std().item() > 0)
torch.save({"weight": real}, "saved.pt")
print(torch.equal(torch.load("saved.pt")["weight"], real))
"""


def test_what_is_computed_on_the_host_is_as_ever(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run_on_phantom(ON_HOST)
    assert done.output.splitlines() == ["0.0 True", "200.0", "True True", "True"], done.errors
