"""Every paste is read by the framework it is for; torch is in here to run what is pasted."""

import json
import os
import re
import shlex
import subprocess
import sys
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from brim.errors import InputError
from brim.planning.batch_plan import gives, plan
from brim.planning.frameworks import FRAMEWORKS, check_frameworks, paste, pastes

EVEN = gives(4, accumulation=4, ranks=5)
UNEVEN = plan(101, largest=40)


def test_transformers_reads_the_flags(tmp_path):
    from transformers import HfArgumentParser, TrainingArguments

    words = shlex.split(paste(EVEN, "transformers").text.replace("\\\n", ""))
    assert words[:3] == ["torchrun", "--nproc-per-node", "5"]
    flags = words[words.index("train.py") + 1 :]
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(
        [*flags, "--output_dir", str(tmp_path), "--use_cpu", "True"]
    )
    assert arguments.per_device_train_batch_size == 4
    assert arguments.gradient_accumulation_steps == 4
    assert arguments.per_device_eval_batch_size == 4


@pytest.fixture
def own_environment():
    """Lightning and Accelerate leave settings in the environment."""
    with mock.patch.dict(os.environ):
        yield


@pytest.mark.usefixtures("own_environment")
def test_lightning_takes_the_settings():
    from lightning.pytorch import Trainer

    scope = {"Trainer": lambda **kw: Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, **kw)}
    scope |= {"DataLoader": DataLoader, "dataset": TensorDataset(torch.zeros(8, 1))}
    exec(paste(gives(4, accumulation=3), "lightning").text, scope)
    assert scope["trainer"].accumulate_grad_batches == 3
    assert scope["loader"].batch_size == 4


@pytest.mark.usefixtures("own_environment")
def test_accelerate_steps_once_in_an_accumulation():
    from accelerate import Accelerator

    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    stepped = []
    optimizer.register_step_post_hook(lambda *_: stepped.append(1))
    scope = {
        "Accelerator": lambda **kw: Accelerator(cpu=True, **kw),
        "DataLoader": DataLoader,
        "dataset": TensorDataset(torch.zeros(24, 1)),
        "model": model,
        "optimizer": optimizer,
        "loss_of": lambda model, batch: model(batch[0]).mean(),
    }
    exec(paste(gives(4, accumulation=3), "accelerate").text, scope)
    assert len(stepped) == 24 / (4 * 3)


@given(effective=st.integers(1, 999), largest=st.integers(1, 64), ranks=st.integers(1, 8))
def test_deepspeeds_three_fields_agree_as_it_demands(effective, largest, ranks):
    planned = plan(effective * ranks, largest=largest, ranks=ranks)
    fields = json.loads(paste(planned, "deepspeed").text)
    assert fields["train_batch_size"] == (
        fields["train_micro_batch_size_per_gpu"] * fields["gradient_accumulation_steps"] * ranks
    )
    assert fields["train_micro_batch_size_per_gpu"] <= largest


def test_an_uneven_plan_becomes_the_nearest_even_one_and_says_so():
    for name, found in pastes(UNEVEN, largest=40).items():
        if name == "torch":
            assert found.note is None
            assert "[34, 34, 33]" in found.text
        else:
            assert "34 × 3 = 102, 1 more than 101" in found.note
    exact = paste(plan(100, largest=40), "transformers", largest=40)
    assert "--per_device_train_batch_size 25" in exact.text
    assert "exact, with 1 microbatch more" in exact.note


@settings(deadline=None, max_examples=20)
@given(effective=st.integers(1, 40), largest=st.integers(1, 16))
def test_the_plain_loop_gives_the_full_batchs_gradient(effective, largest):
    torch.manual_seed(0)
    inputs, targets = torch.randn(effective, 3, dtype=torch.float64), torch.randn(effective, 1, dtype=torch.float64)
    model = nn.Linear(3, 1).double()
    nn.functional.mse_loss(model(inputs), targets).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    stepped = []
    scope = {
        "DataLoader": DataLoader,
        "dataset": TensorDataset(inputs, targets),
        "model": model,
        "loss_sum": lambda output, target: nn.functional.mse_loss(output, target, reduction="sum"),
        "optimizer": _Optimizer(lambda: stepped.append([parameter.grad.clone() for parameter in model.parameters()])),
    }
    exec(paste(plan(effective, largest=largest), "torch").text, scope)
    assert len(stepped) == 1
    for found, wanted in zip(stepped[0], expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


class _Optimizer:
    def __init__(self, step):
        self.step = step

    def zero_grad(self):
        pass


SCRIPT = """
import sys, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
loss_sum = lambda output, target: nn.functional.mse_loss(output, target, reduction="sum")
class Optimizer:
    def step(self):
        for parameter, wanted in zip(plain.parameters(), expected):
            torch.testing.assert_close(parameter.grad, wanted, rtol=1e-10, atol=1e-10)
        print("stepped")
    def zero_grad(self):
        pass
optimizer, epoch = Optimizer(), 0
for size, paste in PASTES:
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(size, 3).double(), torch.randn(size, 1).double())
    plain = nn.Linear(3, 1).double()
    nn.functional.mse_loss(plain(dataset.tensors[0]), dataset.tensors[1]).backward()
    expected = [parameter.grad.clone() for parameter in plain.parameters()]
    plain.zero_grad()
    model = DistributedDataParallel(plain)
    exec(paste)
dist.destroy_process_group()
"""


def test_the_plain_loop_over_two_ranks_gives_the_full_batchs_gradient(tmp_path):
    plans = [plan(14, largest=3, ranks=2), plan(13, largest=3, ranks=2), plan(6, largest=3, ranks=2)]
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("PASTES", repr([(each.effective, paste(each, "torch").text) for each in plans])))
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    assert [process.communicate(timeout=240)[0] for process in ranks] == ["stepped\n" * len(plans)] * 2


def test_nothing_to_paste_has_a_space_at_the_end_of_a_line():
    for name in FRAMEWORKS:
        for planned in (EVEN, UNEVEN, plan(9, largest=3, ranks=2)):
            assert not re.search(r"[ \t]$", paste(planned, name).text, flags=re.MULTILINE)


def test_a_framework_that_is_not_known_is_refused():
    assert check_frameworks("all") == FRAMEWORKS
    with pytest.raises(InputError, match="no framework 'jax'"):
        check_frameworks("jax")
