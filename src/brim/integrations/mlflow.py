"""Results of a sweep as runs of an MLflow experiment, findings and plans in a run; MLflow is told, never asked."""

from __future__ import annotations

import time
from typing import Any

from brim.extras import missing_extra, require
from brim.findings import Findings
from brim.integrations.records import metrics_of, parameters_of
from brim.planning import BatchPlan
from brim.sweeping.results import TrialResult, is_number

# The package that holds the client, of which all of MLflow is made as well.
PACKAGE, AT_LEAST = "mlflow-skinny", "3.0"


class MlflowSink:
    """Makes one run of each trial.

    Args:
        uri: A tracking server, such as `http://host:5000`; with all of MLflow installed also a database, such as
            `sqlite:///mlflow.db`.
        experiment: The experiment's name; it is created where there is none.
    """

    def __init__(self, uri: str, *, experiment: str) -> None:
        self._client = _mlflow("--mlflow").MlflowClient(tracking_uri=uri)
        found = self._client.get_experiment_by_name(experiment)
        self._experiment_id = found.experiment_id if found else self._client.create_experiment(experiment)

    def record(self, result: TrialResult) -> None:
        """Write a run with the values that were used, the metrics, and how it ended."""
        ended = int(time.time() * 1000)
        started = ended - int((result.seconds or 0.0) * 1000)
        tags = {"brim.trial": result.id, "brim.status": result.status}
        run = self._client.create_run(self._experiment_id, start_time=started, tags=tags, run_name=result.id)
        for key, value in {**result.config, **result.effective}.items():
            self._client.log_param(run.info.run_id, key, value)
        for name, value in result.metrics.items():
            if is_number(value):
                self._client.log_metric(run.info.run_id, name, value)
        status = "FINISHED" if result.status == "done" else "FAILED"
        self._client.set_terminated(run.info.run_id, status=status, end_time=ended)

    def close(self) -> None:
        """Do nothing: every run was written whole."""


def log_to_mlflow(found: Findings | BatchPlan) -> None:
    """Write findings or a plan into the active MLflow run, or a new one: answers as parameters, measures as metrics.

    Raises:
        InputError: It is neither, or MLflow is missing or too old.
    """
    mlflow = _mlflow("log_to_mlflow")
    mlflow.log_params(parameters_of(found))
    mlflow.log_metrics(metrics_of(found))


def _mlflow(option: str) -> Any:
    try:
        import mlflow
    except ImportError as error:
        raise missing_extra("mlflow", option) from error
    require(PACKAGE, AT_LEAST)
    return mlflow
