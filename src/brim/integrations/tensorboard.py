"""Results of a sweep, findings and plans in TensorBoard's table of hyperparameters; it is told, never asked."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from brim.extras import missing_extra, require
from brim.findings import Findings
from brim.integrations.records import metrics_of, parameters_of
from brim.planning import BatchPlan
from brim.sweeping.observer import format_value
from brim.sweeping.results import TrialResult, is_number

AT_LEAST = "2.18"


class TensorBoardSink:
    """Writes one run of each trial.

    Args:
        folder: What `tensorboard --logdir` is given.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._writer_class = _writer_class("--tensorboard")

    def record(self, result: TrialResult) -> None:
        """Write the values that were used and the metrics; a trial without metrics has no row."""
        metrics = {name: value for name, value in result.metrics.items() if is_number(value)}
        if not metrics:
            return
        used = {**result.config, **result.effective}
        plain = (bool, int, float, str)
        values = {key: value if isinstance(value, plain) else format_value(value) for key, value in used.items()}
        with self._writer_class(log_dir=str(self._folder / result.id)) as writer:
            writer.add_hparams(values, metrics, run_name=".")

    def close(self) -> None:
        """Do nothing: every run was written whole."""


def log_to_tensorboard(found: Findings | BatchPlan, folder: str | Path) -> None:
    """Write findings or a plan as a run of its own in TensorBoard's table of hyperparameters.

    Args:
        found: What `brim.find` or `brim.plan` returned.
        folder: What `tensorboard --logdir` is given. The run is `findings` or `plan` in it; a second one `findings-2`.

    Raises:
        InputError: It is neither, or TensorBoard is missing or too old.
    """
    writer_class = _writer_class("log_to_tensorboard")
    parameters = parameters_of(found)
    # A run without a metric has no row.
    metrics = metrics_of(found) or {"brim.planned": 1.0}
    # TensorBoard shows one row of a run, so every document is one.
    with writer_class(log_dir=str(_new_run(found, Path(folder)))) as writer:
        writer.add_hparams(parameters, metrics, run_name=".")


def _new_run(found: Findings | BatchPlan, folder: Path) -> Path:
    name = "plan" if isinstance(found, BatchPlan) else "findings"
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(run for each in names if not (run := folder / each).exists())


def _writer_class(option: str) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise missing_extra("tensorboard", option) from error
    require("tensorboard", AT_LEAST)
    return SummaryWriter
