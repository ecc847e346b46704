"""The verdict over the ranks of a command, from what they wrote."""

from brim.probing.scripts.records import Ended, Record, judge, read_records, write_record

OOM = {"verdict": "oom", "detail": "MemoryError: no message", "phase": "step", "time": 2.0}
LOST = {"verdict": "error", "detail": "RuntimeError: Connection closed by peer", "phase": "step", "time": 1.0}
RAISED = {"verdict": "error", "detail": "ValueError: no", "phase": "build", "time": 3.0, "traceback": "in train.py"}


def record(rank=0, **values):
    defaults = {
        "status": "done",
        "pid": 100 + rank,
        "rank": rank,
        "num_ranks": 2,
        "kind": "train",
        "steps": 3,
        "begun": 3,
        "step_seconds": 0.1,
        "peak_bytes": 1000,
        "rows": 4,
        "columns": 10,
        "rows_in_all": 12,
        "columns_in_all": 30,
        "elements": 40,
        "calls": {"forward": 3, "backward": 3, "optimizer": 3},
    }
    return Record(**{**defaults, **values})


def verdict(*records, **ended):
    return judge(Ended(records=records, **ended), 4, timeout_seconds=60)


def test_the_highest_peak_and_the_slowest_step_stand_for_all_ranks():
    slow = record(0, peak_bytes=500, step_seconds=0.3, timings=[0.2, 0.3, 0.4])
    probe = verdict(slow, record(1, rows_in_all=8, steps=2, timings=[0.1, 0.1]), exit_code=0).probe
    assert (probe.verdict, probe.peak_bytes, probe.step_seconds) == ("fits", 1000, 0.3)
    assert probe.timings == (0.2, 0.3, 0.4)
    assert (probe.steps, probe.samples) == (2, 8)


def test_samples_are_counted_along_the_dimension_in_which_the_microbatch_shows():
    time_first = record(num_ranks=1, rows=35, columns=4, rows_in_all=105, columns_in_all=12)
    assert verdict(time_first, exit_code=0).probe.samples == 12
    split = record(num_ranks=1, rows=2, columns=10, rows_in_all=6, columns_in_all=30)
    assert verdict(split, exit_code=0).probe.samples == 6


def test_a_lost_connection_is_never_the_reason():
    outcome = verdict(record(0, failure=LOST), record(1, failure=OOM))
    assert (outcome.probe.verdict, outcome.probe.detail) == ("oom", "rank 1: MemoryError: no message")


def test_the_first_failure_decides():
    outcome = verdict(record(0, failure=RAISED), record(1, failure=OOM))
    assert outcome.probe.verdict == "oom"
    outcome = verdict(record(0, failure=RAISED), record(1, failure={**OOM, "time": 4.0}))
    assert (outcome.probe.verdict, outcome.phase, outcome.traceback) == ("error", "build", "in train.py")


def test_a_rank_that_a_signal_ended_is_unclear_unless_the_kernel_did_it():
    log = "traceback : Signal 15 (SIGTERM) received by PID 100\ntraceback : Signal 9 (SIGKILL) received by PID 101"
    ranks = record(0, failure=LOST), record(1, status="running")
    assert verdict(*ranks, exit_code=1, log_tail=log).probe.detail == "of rank 1 was ended by SIGKILL"
    assert verdict(*ranks, exit_code=1, log_tail=log, is_host_full=True).probe.verdict == "oom"
    assert verdict(record(0), exit_code=-11).probe.detail == "was ended by SIGSEGV"


def test_a_rank_that_only_others_know_is_lost_is_unclear_and_never_fits():
    ranks = record(0, failure=LOST, status="failed", steps=1), record(1, status="running", steps=1)
    assert verdict(*ranks).probe.verdict == "unclear"
    assert verdict(*ranks, exit_code=1, log_tail="RuntimeError: Connection closed by peer").probe.verdict == "unclear"


def test_a_job_that_was_ended_before_all_ranks_were_done_does_not_fit():
    assert verdict(record(0), record(1, status="running", steps=1)).probe.verdict == "unclear"
    assert verdict(record(0)).probe.verdict == "unclear", "the other of two ranks never wrote"


def test_an_exit_without_an_exception_is_judged_by_the_last_words():
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    assert verdict(record(steps=1), exit_code=1, log_tail=oom).probe.verdict == "oom"
    other = verdict(exit_code=2, log_tail="usage: train.py [-h]")
    assert other.probe.detail == "it ended with exit code 2 before its first step: usage: train.py [-h]"
    assert other.probe.verdict == "error"


def test_a_hang_names_the_rank_that_is_behind():
    outcome = verdict(record(0, steps=1, begun=2), record(1, steps=1, begun=1), is_hung=True)
    assert outcome.probe.detail == "made no progress for 60 s and was ended in step 2; rank 1 was behind"
    assert outcome.probe.verdict == "unclear"


def test_forward_passes_are_steps_where_an_optimizer_was_made_and_never_used():
    idle = record(steps=0, kind="eval", calls={"forward": 5, "backward": 0, "optimizer": 0})
    assert verdict(idle, exit_code=0).probe.steps == 5


def test_a_hook_that_failed_says_what_to_install():
    outcome = verdict(exit_code=0, hook_failure="Traceback\nModuleNotFoundError: No module named 'brim'")
    assert "No module named 'brim'. Install brim into its environment" in outcome.probe.detail
    assert outcome.idle


def test_records_are_read_back_in_the_order_of_ranks(tmp_path):
    for rank in (1, 0):
        one = record(rank)
        write_record(tmp_path, {name: getattr(one, name) for name in Record.__dataclass_fields__})
    assert [one.rank for one in read_records(tmp_path)] == [0, 1]
    write_record(tmp_path / "gone", {"pid": 7})  # the job has ended: no error
