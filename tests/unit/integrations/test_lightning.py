"""The callback in the place of Lightning's BatchSizeFinder, with the real library, also under DDP."""

import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, SubsetRandomSampler

from brim import extras
from brim.errors import InputError
from brim.integrations.lightning import BatchSizeCallback
from brim.integrations.lightning_probes import samples_per_rank

pytestmark = pytest.mark.filterwarnings("ignore")  # the library's own
WORKLOADS = Path(__file__).parents[2] / "workloads"


class Module(pl.LightningModule):
    """Runs out of memory above 7 rows; its class keeps what it saw, since what a module keeps of probes is put back."""

    shapes, evaluated, weights = [], [], []

    def __init__(self, batch_size=2):
        super().__init__()
        for seen in (self.shapes, self.evaluated, self.weights):
            seen.clear()
        self.batch_size = batch_size
        self.net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def training_step(self, batch, index):
        self.shapes.append(tuple(batch.shape))
        self.weights.append(self.net[0].weight.detach().clone())
        if len(batch) > 7:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        loss = self.net(batch[:, :4]).mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.evaluate(batch, largest=9)

    def test_step(self, batch, index):
        self.evaluate(batch, largest=11)

    def predict_step(self, batch, index):
        return self.evaluate(batch, largest=13)

    def evaluate(self, batch, *, largest):
        self.evaluated.append(tuple(batch.shape))
        outputs = self.net(batch[:, :4])
        if len(batch) > largest:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return outputs

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

    def val_dataloader(self):
        return self.train_dataloader()

    test_dataloader = predict_dataloader = val_dataloader

    def train_dataloader(self):
        rows = [torch.ones(9 if index == 5 else 4) for index in range(24)]
        return DataLoader(
            rows, batch_size=self.batch_size, collate_fn=lambda rows: nn.utils.rnn.pad_sequence(rows, batch_first=True)
        )


def make_trainer(callback):
    return pl.Trainer(
        accelerator="cpu", devices=1, callbacks=[callback], max_steps=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip


def test_the_effective_batch_is_kept_and_the_fit_starts_as_if_there_had_been_no_probe():
    module, callback = Module(), BatchSizeCallback(effective=12, memory="4GiB", cache=False)
    first_weight = module.net[0].weight.detach().clone()
    trainer = make_trainer(callback)
    trainer.fit(module)
    assert (module.batch_size, trainer.accumulate_grad_batches) == (6, 2)
    assert callback.plan.effective == 12
    assert trainer.global_step == 2
    # The run itself: two windows of two batches, from the weights that the module came with.
    assert [shape[0] for shape in module.shapes[-4:]] == [6] * 4
    assert torch.equal(module.weights[-4], first_weight)
    assert {shape[1] for shape in module.shapes[:-4]} == {9}  # probes saw the longest sample only
    assert module.trainer is trainer


@pytest.mark.long
def test_without_an_effective_batch_the_largest_is_taken():
    module, callback = Module(batch_size=4), BatchSizeCallback(cap=8, memory="4GiB", cache=False, steps=2)
    trainer = make_trainer(callback)
    trainer.fit(module)
    assert module.batch_size == callback.finding.microbatch == 7
    assert trainer.accumulate_grad_batches == 1


class Small(Module):
    """Has six samples, and a loader that drops a last batch that is not full."""

    def train_dataloader(self):
        return DataLoader(torch.ones(6, 4), batch_size=self.batch_size, drop_last=True)


@pytest.mark.parametrize(("effective", "expected"), [(None, (6, 1)), (12, (6, 2)), (8, (4, 2))])
def test_no_batch_of_fit_is_larger_than_the_dataset(effective, expected):
    module = Small()
    trainer = make_trainer(BatchSizeCallback(effective=effective, memory="4GiB", cache=False, steps=1))
    trainer.fit(module)
    assert (module.batch_size, trainer.accumulate_grad_batches) == expected
    assert trainer.global_step == 2


@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        (DataLoader(range(9), sampler=DistributedSampler(range(9), num_replicas=2, rank=0)), 5),
        (DataLoader(range(9), sampler=SubsetRandomSampler(range(3))), 2),
        (DataLoader(range(9)), 5),
        (DataLoader(type("Endless", (IterableDataset,), {"__iter__": itertools.count})()), None),
    ],
)
def test_a_ranks_samples_are_counted_once(loader, expected):
    assert samples_per_rank(loader, ranks=2) == expected


def test_an_evaluation_gets_a_size_of_its_own_and_loads_its_data_with_it():
    module, callback = Module(batch_size=4), BatchSizeCallback(memory="4GiB", cache=False, steps=2, cap=8)
    make_trainer(callback).validate(module)
    assert callback.findings["validate"].microbatch == 8
    assert [rows for rows, _ in module.evaluated[-3:]] == [8, 8, 8]
    assert module.batch_size == 4


@pytest.mark.long
def test_validate_test_and_predict_get_a_size_of_their_own_and_leave_that_of_training():
    module, callback = Module(batch_size=4), BatchSizeCallback(memory="4GiB", cache=False, steps=2)
    trainer = make_trainer(callback)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    for stage, largest in (("validate", 9), ("test", 11), ("predict", 13)):
        module.evaluated.clear()
        getattr(trainer, stage)(module)
        assert callback.findings[stage].microbatch == largest
        # The run itself: all 24 samples in batches of that size, after probes that saw the longest sample only.
        num_batches = math.ceil(24 / largest)
        run, probes = module.evaluated[-num_batches:], module.evaluated[:-num_batches]
        assert [rows for rows, _ in run] == [largest] * (24 // largest) + [24 % largest] * (24 % largest > 0)
        assert {columns for _, columns in probes} == {9}
        assert module.batch_size == 4
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert module.trainer is trainer


class Counting(Module):
    """Counts and collects as modules do, and builds a layer when it is set up."""

    def __init__(self):
        super().__init__(batch_size=4)
        self.num_steps, self.outs, self.num_summed = 0, [], None
        self.mean = torchmetrics.MeanMetric()

    def setup(self, stage):
        self.head = nn.Linear(1, 1)

    def training_step(self, batch, index):
        self.num_steps += 1
        self.mean.update(batch.mean())
        return self.head(super().training_step(batch, index)[None])

    def validation_step(self, batch, index):
        super().validation_step(batch, index)
        self.outs.append(batch)
        self.mean.update(batch.mean())

    def on_validation_epoch_end(self):
        self.num_summed = sum(map(len, self.outs))
        self.outs.clear()


def test_what_a_module_counts_and_collects_is_of_its_own_run_alone():
    module, trainer = Counting(), make_trainer(BatchSizeCallback(memory="4GiB", cache=False, steps=2, cap=8))
    trainer.validate(module)
    assert module.num_summed == 24
    assert module.mean.update_count == 3
    trainer.fit(module)
    assert (module.num_steps, module.mean.update_count) == (2, 5)
    # What was trained is the layer that the module has.
    assert module.head.weight in trainer.optimizers[0].state


def test_a_loader_that_does_not_follow_the_batch_size_is_refused():
    module, loader = Module(), DataLoader(torch.ones(24, 4), batch_size=3)
    with pytest.raises(InputError, match="The loader of test has batches of 3, and batch_size is 2"):
        make_trainer(BatchSizeCallback(cache=False)).test(module, loader)
    loader = DataLoader(torch.ones(24, 4), batch_size=2)
    with pytest.raises(InputError, match=r"hand none to trainer\.test"):
        make_trainer(BatchSizeCallback(cache=False, memory="4GiB", cap=4)).test(module, loader)
    assert module.batch_size == 2


def test_a_loader_handed_to_fit_is_refused_and_nothing_stays_changed():
    module, loader = Module(), DataLoader(torch.ones(24, 4), batch_size=2)
    settings = {"memory": "4GiB", "cache": False, "steps": 1}
    trainer = make_trainer(BatchSizeCallback(effective=4, **settings))
    trainer.accumulate_grad_batches = 7
    with pytest.raises(InputError, match="The loader of fit has batches of 2, and batch_size is 4"):
        trainer.fit(module, loader)
    assert module.batch_size == 2
    assert trainer.accumulate_grad_batches == 7

    class Bare(pl.LightningModule):
        batch_size = 2

        def training_step(self, batch, index):
            pytest.fail("must not be probed")

        def configure_optimizers(self):
            return None

    with pytest.raises(InputError, match=r"Bare has batch_size and no train_dataloader.* none to trainer\.fit"):
        make_trainer(BatchSizeCallback(**settings)).fit(Bare(), loader)


def test_a_module_of_the_other_package_is_told_which_is_needed():
    import pytorch_lightning

    class Other(pytorch_lightning.LightningModule):
        batch_size = 2

        def training_step(self, batch, index):
            pytest.fail("must not be probed")

        def configure_optimizers(self):
            return None

        def train_dataloader(self):
            return DataLoader(torch.ones(24, 4), batch_size=self.batch_size)

    trainer = pytorch_lightning.Trainer(
        accelerator="cpu", callbacks=[BatchSizeCallback()], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    with pytest.raises(InputError, match=r"no Trainer of lightning\.pytorch.* Use: import lightning\.pytorch as pl"):
        trainer.fit(Other())


def test_a_module_without_a_batch_size_is_told_where_to_put_it():
    module = Module()
    del module.batch_size
    with pytest.raises(InputError, match="Set it in __init__"):
        make_trainer(BatchSizeCallback()).fit(module)


def test_a_version_too_old_says_which_is_needed(monkeypatch):
    monkeypatch.setattr(extras.importlib.metadata, "version", lambda package: "2.0.1")
    with pytest.raises(InputError, match=r"lightning 2\.0\.1 is installed, and 2\.5 or newer is needed"):
        BatchSizeCallback()


@pytest.mark.long
def test_under_ddp_both_ranks_take_what_fits_both(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "BRIM_CACHE_DIR": str(tmp_path)}
    run = subprocess.run(
        [*command, str(WORKLOADS / "job_ranks.py"), "lightning"],
        capture_output=True, text=True, env=environment, timeout=280,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert sorted(line for line in run.stdout.splitlines() if line.startswith("rank")) == [
        "rank 0 ran with 24 × 2, validated with 24, weights equal: True",
        "rank 1 ran with 24 × 2, validated with 24, weights equal: True",
    ]
