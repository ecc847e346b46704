"""Sinks against the real libraries: what is written can be read back with them."""

import subprocess
import sys

import pytest

from brim.sweeping.results import TrialResult

DONE = TrialResult(
    id="00000000000000aa",
    config={"model.type": "s3d", "hp.batch_size": {"auto": {"cap": 64}}},
    status="done",
    metrics={"accuracy": 0.71, "note": "fine"},
    seconds=2.5,
    effective={"hp.batch_size": 32},
)
FAILED = TrialResult(id="00000000000000bb", config={"model.type": "r3d_18"}, status="oom", seconds=1.0)


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflow_has_a_run_for_each_trial(tmp_path, monkeypatch):
    # Files need no database package; MLflow wants to be told that they are meant.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    from brim.integrations.mlflow import MlflowSink

    uri = f"file:{tmp_path}/mlruns"
    sink = MlflowSink(uri, experiment="grid")
    sink.record(DONE)
    sink.record(FAILED)
    sink.close()
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("grid")
    runs = {run.data.tags["brim.trial"]: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {DONE.id, FAILED.id}
    assert runs[DONE.id].data.metrics == {"accuracy": 0.71}
    assert runs[DONE.id].data.params == {"model.type": "s3d", "hp.batch_size": "32"}
    assert runs[DONE.id].info.status == "FINISHED"
    assert (runs[FAILED.id].info.status, runs[FAILED.id].data.tags["brim.status"]) == ("FAILED", "oom")


@pytest.mark.filterwarnings("ignore")  # TensorBoard's own
def test_tensorboard_has_a_run_for_each_trial_with_metrics(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from brim.integrations.tensorboard import TensorBoardSink

    sink = TensorBoardSink(tmp_path)
    sink.record(DONE)
    sink.record(FAILED)
    sink.close()
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == [DONE.id]
    events = EventAccumulator(str(tmp_path / DONE.id)).Reload()
    assert [event.value for event in events.Scalars("accuracy")] == pytest.approx([0.71])


@pytest.mark.parametrize(
    ("module", "construct", "extra"),
    [
        ("mlflow", "from brim.integrations.mlflow import MlflowSink as S; S('file:x', experiment='e')", "mlflow"),
        ("tensorboard", "from brim.integrations.tensorboard import TensorBoardSink as S; S('x')", "tensorboard"),
    ],
)
def test_a_missing_package_is_named_with_its_pip_install(module, construct, extra):
    code = f"import sys; sys.modules[{module!r}] = None\n{construct}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 1
    assert f"pip install 'brim[{extra}]'" in run.stderr
