"""Searches inside a job of two ranks over gloo, run by torchrun; rank 1 has less room than rank 0."""

import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn

LARGEST = {0: 40, 1: 24}


class Net(nn.Module):
    """A model that runs out of memory where the rank's room ends, in the middle of the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if len(inputs) > LARGEST[dist.get_rank()]:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self.layer(inputs)


def accelerate() -> None:
    from accelerate import Accelerator

    from brim.integrations.accelerate import find_executable_batch_size

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    net = Net()

    @find_executable_batch_size(starting_batch_size=8, device="cpu", memory="2GiB")
    def train(batch_size):
        accelerator.free_memory()
        model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
        for _ in range(4):
            accelerator.backward(model(torch.randn(batch_size, 4) + dist.get_rank()).sum())
            optimizer.step()
            optimizer.zero_grad()
        return batch_size

    size = train()
    weights = [torch.zeros_like(net.layer.weight) for _ in range(2)]
    dist.all_gather(weights, net.layer.weight.detach())
    print(f"rank {dist.get_rank()} ran with {size}, weights equal: {torch.equal(*weights)}", flush=True)
    dist.destroy_process_group()


def lightning() -> None:
    import lightning.pytorch as pl

    from brim.integrations.lightning import BatchSizeCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.batch_size = 8
            self.net = Net()

        def training_step(self, batch, index):
            loss = self.net(batch + self.global_rank).sum()
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, index):
            self.net(batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

        def train_dataloader(self):
            return torch.utils.data.DataLoader([torch.ones(4)] * 200, batch_size=self.batch_size)

        val_dataloader = train_dataloader

    callback = BatchSizeCallback(effective=96, memory="2GiB", steps=2)
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", callbacks=[callback], max_steps=2, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    torch.manual_seed(0)
    module = Module()
    trainer.fit(module)
    weights = [torch.zeros_like(module.net.layer.weight) for _ in range(2)]
    dist.all_gather(weights, module.net.layer.weight.detach())
    size = f"{module.batch_size} × {trainer.accumulate_grad_batches}"
    trainer.validate(module)
    size += f", validated with {callback.findings['validate'].microbatch}"
    print(f"rank {dist.get_rank()} ran with {size}, weights equal: {torch.equal(*weights)}", flush=True)


def transformers() -> None:
    from transformers import Trainer, TrainingArguments

    from brim.integrations.transformers import fit_arguments

    class Model(nn.Module):
        """Has a buffer, which DDP sends around, and twice the room without gradients."""

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            if len(x) > LARGEST[dist.get_rank()] * (1 if torch.is_grad_enabled() else 2):
                raise torch.OutOfMemoryError("CUDA out of memory.")
            predicted = self.net(x + dist.get_rank())
            return {"loss": (predicted - labels).square().mean(), "logits": predicted}

    torch.manual_seed(0)
    model, rows = Model(), [{"x": torch.ones(4), "labels": torch.ones(1)}] * 200
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, per_device_train_batch_size=48, max_steps=2, use_cpu=True, report_to=[], disable_tqdm=True,
            save_strategy="no", logging_strategy="no",
        )  # fmt: skip

        def make_trainer(args: TrainingArguments) -> Trainer:
            return Trainer(model=model, args=args, train_dataset=rows, eval_dataset=rows)

        fit_arguments(make_trainer, args, device="cpu", memory="2GiB", steps=2)
        trainer = make_trainer(args)
        trainer.train()
        trainer.evaluate()
    weights = [torch.zeros_like(model.net[1].weight) for _ in range(2)]
    dist.all_gather(weights, model.net[1].weight.detach())
    size = f"{args.per_device_train_batch_size} × {args.gradient_accumulation_steps}"
    size += f", evaluated with {args.per_device_eval_batch_size}"
    print(f"rank {dist.get_rank()} ran with {size}, weights equal: {torch.equal(*weights)}", flush=True)


if __name__ == "__main__":
    {"accelerate": accelerate, "lightning": lightning, "transformers": transformers}[sys.argv[1]]()
