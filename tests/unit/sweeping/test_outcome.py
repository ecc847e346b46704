import json

import pytest

from brim.findings import Verdict
from brim.probing.output import classify_text
from brim.sweeping.calling import as_metrics
from brim.sweeping.outcome import FAILURE_FILE, LOG_FILE, RESULT_FILE, Exit, ExitKind, TrialOutcome, judge


@pytest.mark.parametrize(
    ("ended", "log", "kind", "detail"),
    [
        (Exit(exit_code=0), "", ExitKind.DONE, None),
        (Exit(exit_code=1), "", ExitKind.ERROR, "exit code 1"),
        (Exit(exit_code=3), "no data\n", ExitKind.ERROR, "exit code 3: no data"),
        (Exit(exit_code=-9), "", ExitKind.ERROR, "ended by SIGKILL"),
        (Exit(exit_code=-11), "", ExitKind.ERROR, "ended by SIGSEGV"),
        (Exit(exit_code=-9, oom_killed=True), "", ExitKind.HOST_OOM, "killed by the kernel: the host's memory ran out"),
        (
            Exit(exit_code=137, oom_killed=True),
            "",
            ExitKind.HOST_OOM,
            "killed by the kernel: the host's memory ran out",
        ),
        (Exit(exit_code=137), "", ExitKind.ERROR, "exit code 137, as after SIGKILL"),
        (Exit(exit_code=1, oom_killed=True), "ValueError: x", ExitKind.ERROR, "ValueError: x"),
        (Exit(exit_code=-6), "terminate called\n  what():  std::bad_alloc\n", ExitKind.OOM, "what():  std::bad_alloc"),
        (Exit(exit_code=-15, ended_by="request"), "", ExitKind.INTERRUPTED, "ended with the sweep"),
        (Exit(exit_code=-9, ended_by="timeout", seconds=60), "", ExitKind.TIMEOUT, "ended after 60 s, its time limit"),
        (Exit(exit_code=None, problem="no such file"), "", ExitKind.ERROR, "no such file"),
    ],
)
def test_every_way_to_end_has_its_kind(tmp_path, ended, log, kind, detail):
    (tmp_path / LOG_FILE).write_text(log)
    outcome = judge(ended, tmp_path)
    assert (outcome.kind, outcome.detail) == (kind, detail)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("Traceback (most recent call last):\n  File\ntorch.OutOfMemoryError: CUDA out of memory.", Verdict.OOM),
        ("[rank1]: torch.OutOfMemoryError: CUDA out of memory.", Verdict.OOM),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried", Verdict.OOM),
        ("MemoryError", Verdict.OOM),
        ("MemoryError\nsubprocess.CalledProcessError: Command died", Verdict.OOM),
        (
            "torch.OutOfMemoryError: x\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n",
            Verdict.OOM,
        ),
        ("torch.OutOfMemoryError: x\nhalving the batch\nKeyError: 'y'", Verdict.ERROR),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", Verdict.ERROR),
        ("CUDA out of memory. Tried to allocate 2 GiB", Verdict.OOM),
        ("", Verdict.ERROR),
    ],
)
def test_only_the_last_reason_in_a_log_counts(text, verdict):
    assert classify_text(text)[0] is verdict


def test_metrics_are_flattened_and_what_json_cannot_hold_becomes_none(tmp_path):
    (tmp_path / RESULT_FILE).write_text('{"val": {"accuracy": 0.5, "best": true}, "loss": NaN, "curve": [1, 2]}')
    outcome = judge(Exit(exit_code=0), tmp_path)
    assert outcome.metrics == {"val.accuracy": 0.5, "val.best": True, "loss": None}


@pytest.mark.parametrize(("text", "detail"), [("{", "is not JSON"), ("[1]", "must hold an object such as")])
def test_a_result_that_cannot_be_read_is_an_error(tmp_path, text, detail):
    (tmp_path / RESULT_FILE).write_text(text)
    outcome = judge(Exit(exit_code=0), tmp_path)
    assert outcome.kind is ExitKind.ERROR
    assert detail in outcome.detail


def test_what_a_function_raised_goes_before_its_log(tmp_path):
    (tmp_path / LOG_FILE).write_text("ValueError: something else\n")
    (tmp_path / FAILURE_FILE).write_text(json.dumps({"kind": "oom", "detail": "MemoryError"}))
    assert judge(Exit(exit_code=1), tmp_path).kind is ExitKind.OOM


def test_an_outcome_survives_its_journal():
    outcome = TrialOutcome(kind=ExitKind.OOM, metrics={"a": 1}, seconds=2.0, effective={"b": 3}, where="here")
    assert TrialOutcome.from_dict(json.loads(json.dumps(outcome.to_dict()))) == outcome


def test_tensors_and_arrays_of_one_value_are_numbers():
    import numpy as np
    import torch

    assert as_metrics(torch.tensor(0.5)) == {"value": 0.5}
    assert as_metrics(np.float32(0.5)) == {"value": 0.5}


def test_what_is_no_metric_is_refused():
    with pytest.raises(ValueError, match=r"The function returned a list\. Return a mapping of metrics, or a number"):
        as_metrics([1, 2])
