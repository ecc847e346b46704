"""The frameworks' drop-ins on CUDA: what they find under a limit, beside a model that lies on the GPU already."""

import logging

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from brim.integrations.accelerate import find_executable_batch_size
from brim.integrations.lightning import BatchSizeCallback
from brim.integrations.transformers import fit_arguments

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]  # the libraries' own

MIB = 2**20
WIDTH = 1024
ROWS = 512
MEMORY = "1400MiB"
LIMIT_BYTES = int(0.9 * 1400 * MIB)


@pytest.fixture(autouse=True)
def empty_device(room):
    """Begin and end with nothing cached."""
    torch.cuda.empty_cache()


def check_limit(finding):
    """What was found fits the limit, and something larger did not."""
    fitted = [probe for probe in finding.probes if probe.microbatch == finding.microbatch]
    assert fitted[-1].verdict == "fits"
    assert fitted[-1].peak_bytes <= LIMIT_BYTES
    assert fitted[-1].memory["allocated_bytes"] <= fitted[-1].memory["reserved_bytes"]
    assert "oom" in {probe.verdict for probe in finding.probes}


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.full((192,), 3)
        return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}


def test_arguments_of_a_trainer_are_filled_in_and_the_effective_batch_counts_every_gpu_it_spreads_over(tmp_path):
    config = GPT2Config(
        n_layer=1, n_embd=128, n_head=2, vocab_size=8000, n_positions=192, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    args = TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=64, report_to=[], save_strategy="no", disable_tqdm=True
    )
    num_gpus = args.n_gpu
    assert num_gpus == torch.cuda.device_count()

    def make_trainer(args):
        return Trainer(model=model, args=args, train_dataset=Texts())

    fitted = fit_arguments(make_trainer, args, device="cuda:0", memory=MEMORY, steps=1, cache=False)
    check_limit(fitted.train)
    assert fitted.plan.effective == 64 * num_gpus
    assert args.per_device_train_batch_size == fitted.train.microbatch < 64
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps * num_gpus == 64 * num_gpus
    assert {parameter.grad for parameter in model.parameters()} == {None}


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.batch_size = 64
        self.net = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))

    def training_step(self, batch, index):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

    def train_dataloader(self):
        return DataLoader(torch.ones(96, 1, 1).expand(96, ROWS, WIDTH), batch_size=self.batch_size)


def test_lightning_trains_with_the_batch_that_fits(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # which Lightning would set, and leave behind
    callback = BatchSizeCallback(memory=MEMORY, cache=False, effective=64)
    trainer = pl.Trainer(
        accelerator="cuda", devices=1, max_steps=1, callbacks=[callback], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    module = Module()
    trainer.fit(module)
    check_limit(callback.finding)
    assert callback.finding.microbatch == module.batch_size < 64
    assert callback.plan.effective == module.batch_size * trainer.accumulate_grad_batches == 64
    assert (trainer.global_step, str(trainer.strategy.root_device)) == (1, "cuda:0")


def test_a_function_of_the_batch_size_is_searched_and_started_again_where_its_run_is_out_of_memory(room, caplog):
    caplog.set_level(logging.INFO, logger="brim")
    model = nn.Linear(WIDTH, WIDTH).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    sizes = []

    @find_executable_batch_size(starting_batch_size=512, device="auto", memory=MEMORY, cache=False)
    def train(batch_size, *, late):
        sizes.append(batch_size)
        for step in range(5):
            model(torch.ones(batch_size, ROWS, WIDTH, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 4 and late:  # later than probes look
                torch.empty(batch_size * 40 * MIB, dtype=torch.uint8, device="cuda")
        return batch_size

    found = train(late=False)
    assert sizes[-1] == found < 512
    assert f"running with batch size {found}" in caplog.text
    # Every sample takes its input and its output, and its output's gradient.
    assert (found - 1) * 2 * ROWS * WIDTH * 4 < LIMIT_BYTES - kept.nbytes
    room(torch.cuda.memory_reserved() + found * 20 * MIB)
    assert train(late=True) < found
    assert "ran out of memory in the run itself; starting it again with" in caplog.text
