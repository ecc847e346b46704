import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.sweeping.outcome import ExitKind, TrialOutcome
from brim.sweeping.policy import FAST_SECONDS, Failures, Frontier, Policy, reduce

KEEPING = Policy(reduce="hp.batch", keep_effective="hp.accumulation")


@given(st.integers(2, 4096), st.integers(1, 64))
def test_a_reduced_batch_is_at_most_half_and_keeps_the_effective_batch(batch, accumulation):
    smaller = reduce(KEEPING, {"hp": {"batch": batch, "accumulation": accumulation}})
    assert 1 <= smaller["hp.batch"] <= batch // 2
    assert smaller["hp.batch"] * smaller["hp.accumulation"] == batch * accumulation


@given(st.integers(1, 10**6))
def test_reducing_comes_to_an_end(batch):
    num_steps = 0
    while (smaller := reduce(Policy(reduce="b"), {"b": batch})) is not None:
        batch = smaller["b"]
        num_steps += 1
    assert batch == 1
    assert num_steps <= 20


@pytest.mark.parametrize("value", [1, "auto", None, True, 0.5, {"auto": {}}])
def test_what_cannot_be_halved_is_not_reduced(value):
    assert reduce(Policy(reduce="b"), {"b": value}) is None


def test_without_a_wish_nothing_is_reduced():
    assert reduce(Policy(), {"b": 64}) is None


def config(model, batch):
    return {"model": {"type": model}, "hp": {"batch_size": batch}}


def test_only_larger_batches_of_the_same_model_are_predicted_to_run_out():
    frontier = Frontier(Policy(skip_larger="hp.batch_size", of=("model.type",)))
    assert frontier.predicts_oom(config("a", 64)) is None
    frontier.tell(config("a", 32), ExitKind.OOM)
    frontier.tell(config("a", 16), ExitKind.DONE)
    frontier.tell(config("b", 1), ExitKind.ERROR)
    assert frontier.predicts_oom(config("a", 64)) == "hp.batch_size 32 already ran out of memory"
    assert frontier.predicts_oom(config("a", 32)) is None
    assert frontier.predicts_oom(config("a", 16)) is None
    assert frontier.predicts_oom(config("b", 64)) is None
    assert frontier.predicts_oom(config("a", "auto")) is None
    frontier.tell(config("a", 32), ExitKind.DONE)
    assert frontier.predicts_oom(config("a", 64)) is None


def failure(detail="ValueError: x", seconds=1.0, kind=ExitKind.ERROR):
    return TrialOutcome(kind=kind, detail=detail, seconds=seconds, exit_code=1)


@pytest.mark.parametrize(
    ("outcomes", "stops"),
    [
        ([failure(), failure(), failure()], True),
        ([failure(), failure()], False),
        ([failure(), failure("KeyError: y"), failure()], False),
        ([failure(), failure(kind=ExitKind.DONE), failure(), failure()], False),
        ([failure(), failure(kind=ExitKind.INTERRUPTED), failure(), failure()], True),
        ([failure(seconds=FAST_SECONDS + 1)] * 5, False),
        ([failure(kind=ExitKind.OOM)] * 5, False),
    ],
)
def test_only_equal_fast_failures_in_a_row_stop_a_sweep(outcomes, stops):
    failures = Failures(Policy(stop_after=3))
    reasons = [failures.tell(outcome) for outcome in outcomes]
    assert (reasons[-1] is not None) == stops
    assert all(reason is None for reason in reasons[:-1])


def test_a_sweep_may_be_told_to_go_on_whatever_fails():
    failures = Failures(Policy.read(None, 0, model_key="model.type"))
    assert all(failures.tell(failure()) is None for _ in range(100))


def test_what_cannot_be_started_stops_at_once():
    failures = Failures(Policy(stop_after=None))
    reason = failures.tell(TrialOutcome(kind=ExitKind.ERROR, detail="no such file", is_fatal=True))
    assert reason == "No trial can be started: no such file"
