"""A workload as Lightning wants it: a module with a `batch_size` that the tuner changes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import lightning.pytorch as pl
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from brim import Workload


class Counter(Protocol):
    """What is told of the sizes that are tried."""

    def begin(self, size: int) -> None:
        """Hear that a batch of this size is made."""

    def watch(self) -> AbstractContextManager[None]:
        """Return a block whose failure is counted."""


class Samples(Dataset[Any]):
    """As many samples as the cap; a whole batch is made at once, as for every other finder."""

    def __init__(self, workload: Workload, num_samples: int, tally: Counter) -> None:
        self._workload = workload
        self._num_samples = num_samples
        self._tally = tally

    def __len__(self) -> int:
        return self._num_samples

    def __getitems__(self, indices: list[int]) -> Any:
        """Return one batch of the workload."""
        self._tally.begin(len(indices))
        with self._tally.watch():
            return self._workload.batch(len(indices))


class Adapter(pl.LightningModule):
    """Runs the workload's own step, with its own model and optimizer."""

    def __init__(self, workload: Workload, *, num_samples: int, first_size: int, tally: Counter) -> None:
        super().__init__()
        self.automatic_optimization = False
        # The tuner's first trial runs on the loader that was made before it set the size.
        self.batch_size = first_size
        self.model = workload.model
        self._workload = workload
        self._optimizer = workload.optimizer
        self._samples = Samples(workload, num_samples, tally)
        self._tally = tally

    def configure_optimizers(self) -> Optimizer:
        """Return the workload's optimizer."""
        return self._optimizer

    def train_dataloader(self) -> DataLoader[Any]:
        """Return full batches only: a trial must not pass because its batches were cut short."""
        return DataLoader(
            self._samples, batch_size=self.batch_size, shuffle=False, drop_last=True, collate_fn=lambda batch: batch
        )

    def training_step(self, batch: Any, batch_index: int) -> None:
        """Run one step; Lightning counts the steps of its own wrapper of the optimizer only."""
        self._workload.optimizer = self.optimizers()
        with self._tally.watch():
            self._workload.step(batch)
