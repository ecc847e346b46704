"""Batch sizes of a real transformers Trainer: exact effective batch, model untouched, eval and generation apart."""

import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from brim import extras
from brim.devices import make_meter
from brim.errors import InputError
from brim.integrations.transformers import fit_arguments, train
from brim.probing.in_process import release_memory

WORKLOADS = Path(__file__).parents[2] / "workloads"
CONFIG = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=50, n_positions=64, bos_token_id=0, eos_token_id=0)
SHORT, LONG = {"input_ids": [1, 2], "labels": [1, 2]}, {"input_ids": [3] * 48, "labels": [3] * 48}
ROWS = [LONG if index == 9 else SHORT for index in range(16)]


class Limited(GPT2LMHeadModel):
    """Runs out of memory above a number of rows; its class keeps the shapes, as what a model keeps is put back."""

    shapes: ClassVar = []

    def __init__(self, config, *, largest=10**6):
        super().__init__(config)
        self.largest, self.num_calls = largest, 0
        self.shapes.clear()

    def forward(self, input_ids=None, **inputs):
        self.num_calls += 1
        self.shapes.append((*input_ids.shape, self.training))
        if len(input_ids) > self.largest * (1 if self.training else 2):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().forward(input_ids=input_ids, **inputs)


class Watcher(TrainerCallback):
    """Must not hear of probes."""

    num_begins = 0

    def on_train_begin(self, *args, **kwargs):
        self.num_begins += 1


def collate(samples):
    width = max(len(sample["input_ids"]) for sample in samples)
    rows = torch.tensor([sample["input_ids"] + [0] * (width - len(sample["input_ids"])) for sample in samples])
    return {"input_ids": rows, "labels": rows, "attention_mask": torch.ones_like(rows)}


def arguments(folder, **settings):
    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    return TrainingArguments(output_dir=str(folder), **{**quiet, **settings})


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Limited(CONFIG, largest=7)


@pytest.mark.filterwarnings("ignore")  # the library's own
def test_the_largest_divisor_that_fits_is_filled_in_and_the_model_is_as_it_was(model, tmp_path):
    watcher = Watcher()
    args = arguments(tmp_path, per_device_train_batch_size=24, bf16=True, gradient_checkpointing=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}

    def make_trainer(args):
        return Trainer(
            model=model, args=args, data_collator=collate, train_dataset=ROWS, eval_dataset=ROWS, callbacks=[watcher]
        )

    fitted = fit_arguments(make_trainer, args, device="cpu", memory="4GiB", cache=False)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (6, 4)
    assert fitted.plan.effective == 24
    assert fitted.train.note is None
    assert args.per_device_eval_batch_size == fitted.eval.microbatch == 14
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert watcher.num_begins == 0
    assert model.num_calls == 0
    assert "forward" not in vars(model)
    assert not model.is_gradient_checkpointing
    # Every probe of the training microbatch saw the longest sample only; that of an evaluation trains on two samples.
    assert {shape[1] for shape in model.shapes if shape[2] and shape[0] > 2} == {48}
    make_trainer(args).train()
    assert watcher.num_begins == 1
    assert (6, 48, True) in model.shapes


@pytest.mark.filterwarnings("ignore")
def test_generation_is_probed_by_generating(tmp_path):
    model = Limited(CONFIG, largest=6)
    args = arguments(tmp_path, per_device_eval_batch_size=12)

    def make_trainer(args):
        return Trainer(model=model, args=args, data_collator=collate, eval_dataset=ROWS[:12])

    generation = {"max_new_tokens": 4, "do_sample": False}
    fitted = fit_arguments(make_trainer, args, generation=generation, device="cpu", memory="4GiB", cache=False)
    assert fitted.train is None
    assert fitted.generate.microbatch == 12
    assert model.shapes[-1] == (12, 48 + 3, False)  # the last of four steps of decoding


@pytest.mark.filterwarnings("ignore")
def test_without_an_eval_dataset_generation_is_probed_with_samples_of_training(tmp_path):
    model = Limited(CONFIG, largest=6)
    args = arguments(tmp_path, per_device_train_batch_size=2, per_device_eval_batch_size=8)

    def make_trainer(args):
        return Trainer(model=model, args=args, data_collator=collate, train_dataset=ROWS)

    generation = {"max_new_tokens": 4, "do_sample": False}
    fitted = fit_arguments(make_trainer, args, generation=generation, device="cpu", memory="4GiB", cache=False, steps=1)
    assert fitted.eval is None
    assert fitted.generate.microbatch == 12  # of 16 samples
    assert (12, 48 + 3, False) in model.shapes


@pytest.mark.filterwarnings("ignore")
def test_training_that_runs_out_starts_again_from_the_first_weights_with_the_same_effective_batch(model, tmp_path):
    args = arguments(tmp_path, per_device_train_batch_size=16, max_steps=2)
    starts = []

    class Noting(Trainer):
        def train(self, *args, **kwargs):
            starts.append(self.model.transformer.wte.weight.detach().clone())
            return super().train(*args, **kwargs)

    trainer = train(lambda args: Noting(model=model, args=args, data_collator=collate, train_dataset=ROWS), args)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (4, 4)
    assert trainer.state.global_step == 2
    assert len(starts) == 3
    assert torch.equal(starts[0], starts[1])
    assert torch.equal(starts[0], starts[2])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.long
def test_a_real_limit_ends_the_search_for_the_microbatch(tmp_path):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(CONFIG)
    args = arguments(tmp_path, per_device_train_batch_size=4096)
    release_memory()
    memory = make_meter("cpu").peaks()["peak_bytes"] + 150 * 2**20
    fitted = fit_arguments(
        lambda args: Trainer(model=model, args=args, data_collator=collate, train_dataset=ROWS),
        args, device="cpu", memory=memory, fill=1.0, cache=False, steps=2,
    )  # fmt: skip
    assert 16 <= args.per_device_train_batch_size < 4096
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 4096
    assert fitted.train.stopped_by == "memory"


@pytest.mark.long
def test_two_ranks_take_what_fits_both_in_training_and_in_evaluation(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run = subprocess.run(
        [*command, str(WORKLOADS / "job_ranks.py"), "transformers"], capture_output=True, text=True, timeout=280,
        env={**os.environ, "OMP_NUM_THREADS": "1", "BRIM_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert sorted(line for line in run.stdout.splitlines() if line.startswith("rank")) == [
        "rank 0 ran with 24 × 2, evaluated with 48, weights equal: True",
        "rank 1 ran with 24 × 2, evaluated with 48, weights equal: True",
    ]


def test_a_version_too_old_says_which_is_needed(monkeypatch, tmp_path):
    monkeypatch.setattr(extras.importlib.metadata, "version", lambda package: "4.38.2")
    with pytest.raises(InputError, match=r"transformers 4\.38\.2 is installed, and 5\.0 or newer is needed"):
        fit_arguments(lambda args: None, None)


def test_an_effective_batch_of_nothing_is_refused_before_a_trainer_is_made(tmp_path):
    with pytest.raises(InputError, match=r"effective is 0\. Use a whole number of at least 1"):
        fit_arguments(pytest.fail, arguments(tmp_path), effective=0)


def test_a_trainer_without_data_is_refused(tmp_path):
    args = arguments(tmp_path)
    with pytest.raises(InputError, match="neither train_dataset nor eval_dataset"):
        fit_arguments(lambda args: Trainer(model=GPT2LMHeadModel(CONFIG), args=args), args)
