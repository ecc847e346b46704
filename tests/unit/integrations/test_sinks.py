"""Sinks against the real libraries: what is written can be read back with them."""

import pytest

from brim import extras
from brim.cases import Case
from brim.errors import InputError
from brim.findings import Finding, Findings, Probe, Verdict
from brim.integrations.mlflow import MlflowSink, log_to_mlflow
from brim.integrations.tensorboard import TensorBoardSink, log_to_tensorboard
from brim.planning import BatchPlan
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


FINDINGS = Findings(
    workload="train.py:Finetune", kind="train", device_name="cpu", memory_bytes=1000, fill=0.9, strategy="guided",
    findings=(
        Finding(
            case=Case({"seq_len": 512}), microbatch=63, stopped_by="memory", confirmed=True, seconds=2.5,
            probes=(Probe(microbatch=63, verdict=Verdict.FITS, peak_bytes=800, step_seconds=0.5),),
        ),
        Finding(case=Case({"seq_len": 4096}), microbatch=None, stopped_by="memory", confirmed=False, probes=()),
    ),
)  # fmt: skip
PLAN = BatchPlan(effective=80, accumulation=4, ranks=5)


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_findings_and_plans_in_the_active_run(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/mlruns")
    import mlflow

    with mlflow.start_run() as run:
        log_to_mlflow(FINDINGS)
        log_to_mlflow(PLAN)
    data = mlflow.get_run(run.info.run_id).data
    assert data.params["brim.seq_len_512.microbatch"] == "63"
    assert data.params["brim.seq_len_4096.status"] == "nothing_fits"
    assert (data.params["brim.effective"], data.params["brim.accumulation"]) == ("80", "4")
    assert data.metrics["brim.seq_len_512.samples_per_second"] == 126
    assert "brim.seq_len_4096.peak_bytes" not in data.metrics


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_has_findings_and_plans(tmp_path):
    from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
    from tensorboard.plugins.hparams import plugin_data_pb2

    for found in (FINDINGS, PLAN, PLAN):
        log_to_tensorboard(found, tmp_path / "runs")
    runs = EventMultiplexer().AddRunsFromDirectory(str(tmp_path / "runs")).Reload()
    assert set(runs.Runs()) == {"findings", "plan", "plan-2"}
    assert [event.value for event in runs.Scalars("findings", "brim.seq_len_512.peak_bytes")] == [800]
    rows = {}
    for run in runs.Runs():
        start = runs.SummaryMetadata(run, "_hparams_/session_start_info").plugin_data.content
        rows[run] = plugin_data_pb2.HParamsPluginData.FromString(start).session_start_info.hparams
    assert rows["findings"]["brim.seq_len_512.microbatch"].number_value == 63
    assert rows["plan"]["brim.effective"].number_value == rows["plan-2"]["brim.effective"].number_value == 80


@pytest.mark.filterwarnings("ignore")  # MLflow's own
def test_mlflow_has_a_run_for_each_trial(tmp_path, monkeypatch):
    # Files need no database package; MLflow wants to be told that they are meant.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

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

    sink = TensorBoardSink(tmp_path)
    sink.record(DONE)
    sink.record(FAILED)
    sink.close()
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == [DONE.id]
    events = EventAccumulator(str(tmp_path / DONE.id)).Reload()
    assert [event.value for event in events.Scalars("accuracy")] == pytest.approx([0.71])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("found", [3, "x", None, FINDINGS[0]])
def test_what_is_neither_findings_nor_a_plan_is_refused_before_anything_is_written(found, tmp_path):
    for log in (log_to_mlflow, lambda found: log_to_tensorboard(found, tmp_path / "run")):
        with pytest.raises(InputError, match=r"Pass what brim\.find or brim\.plan returned"):
            log(found)
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("use", "needed"),
    [
        (lambda: log_to_mlflow(PLAN), r"mlflow-skinny 2\.9\.1 is installed, and 3\.0 or newer is needed"),
        (lambda: MlflowSink("file:x", experiment="e"), r"mlflow-skinny 2\.9\.1 is installed, and 3\.0 or newer"),
        (lambda: log_to_tensorboard(PLAN, "x"), r"tensorboard 2\.9\.1 is installed, and 2\.18 or newer is needed"),
        (lambda: TensorBoardSink("x"), r"tensorboard 2\.9\.1 is installed, and 2\.18 or newer is needed"),
    ],
)
def test_a_version_too_old_says_which_is_needed(use, needed, monkeypatch):
    monkeypatch.setattr(extras.importlib.metadata, "version", lambda package: "2.9.1")
    with pytest.raises(InputError, match=needed):
        use()
