"""A LightningModule and its Trainer, as Lightning's documentation shows them."""

import argparse
import tempfile

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 64))

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self.net(inputs), targets)

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        inputs, targets = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(inputs), targets))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, required=True)
    args = parser.parse_args()
    dataset = TensorDataset(torch.randn(8192, 64), torch.randn(8192, 64))
    trainer = L.Trainer(max_epochs=50, accelerator="cpu", default_root_dir=tempfile.mkdtemp(), logger=False)
    trainer.fit(
        Regression(),
        DataLoader(dataset, batch_size=args.batch_size, shuffle=True),
        DataLoader(dataset, batch_size=args.batch_size),
    )


if __name__ == "__main__":
    main()
