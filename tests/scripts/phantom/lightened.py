"""A LightningModule on the GPU, in mixed precision and accumulating, as Lightning's documentation shows it."""

import argparse
import tempfile

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.net(inputs), targets)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        inputs, targets = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(inputs), targets))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, required=True)
    parser.add_argument("--precision", default="bf16-mixed")
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()
    dataset = TensorDataset(torch.zeros(8192, 1024), torch.zeros(8192, 1024))
    trainer = L.Trainer(
        max_steps=args.steps,
        accelerator="gpu",
        devices=1,
        precision=args.precision,
        accumulate_grad_batches=args.accumulation,
        gradient_clip_val=1.0,
        default_root_dir=tempfile.mkdtemp(),
        logger=False,
        enable_checkpointing=False,
    )
    loader = DataLoader(dataset, batch_size=args.batch_size)
    trainer.fit(Regression(), loader, loader)
    print(torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main()
