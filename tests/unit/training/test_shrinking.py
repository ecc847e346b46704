"""A function of a batch survives an out-of-memory, alone, and gives what it would have given."""

import runpy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import brim
from brim.errors import InputError, OutOfMemoryError

Overdraw = runpy.run_path(str(Path(__file__).parents[2] / "workloads" / "overdraw.py"))["Overdraw"]


@settings(max_examples=8)
@given(st.integers(1, 20), st.integers(1, 20))
def test_the_results_are_those_of_the_whole_batch_in_order(size, limit):
    budget = Overdraw(limit)
    batch = {"x": torch.arange(size), "names": [str(k) for k in range(size)], "scale": 3}

    @brim.recover
    def evaluate(batch, shift, *, sign=1):
        return {"y": sign * batch["scale"] * budget(batch["x"].double()) + shift, "names": batch["names"]}

    found = evaluate(batch, 5, sign=-1)
    assert found["y"].tolist() == [5 - 3 * k for k in range(size)]
    assert found["names"] == batch["names"]
    assert max(budget.calls[-1:]) <= limit


def test_a_size_that_failed_is_not_tried_again_on_the_rest_of_the_batch(caplog):
    budget = Overdraw(3)

    @brim.recover
    def evaluate(batch):
        return budget(batch)

    with caplog.at_level("WARNING", logger="brim"):
        evaluate(torch.arange(10.0))
    assert [message.partition("; ")[2] for message in caplog.messages] == ["going on with 5.", "going on with 2."]


def test_only_the_part_that_did_not_fit_runs_again_and_later_batches_begin_smaller(caplog):
    budget = Overdraw()

    @brim.recover(microbatch=8)
    def evaluate(batch):
        budget.limit = 4 if len(budget.calls) else None
        return budget(batch)

    evaluate(torch.zeros(16, 1))
    evaluate(torch.zeros(10, 1))
    assert budget.calls == [8, 8, 4, 4, 4, 3, 3]
    assert [record.getMessage() for record in caplog.records] == [
        "evaluate: out of memory with a batch of 8; going on with 4."
    ]
    assert evaluate.microbatch == 4
    assert evaluate.advice == "evaluate: next time begin with microbatch=4."


def test_an_out_of_memory_in_evaluation_leaves_training_alone():
    model = nn.Sequential(Overdraw(), nn.Linear(3, 4))
    acc = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=1)
    x, y = torch.randn(8, 3), torch.zeros(8, dtype=torch.long)
    evaluate = torch.no_grad()(brim.recover(lambda batch: model(batch).argmax(1)))
    model[0].limit = 2
    assert evaluate(x).shape == (8,)
    model[0].limit = None
    model[0].calls.clear()
    assert acc.step((x, y), lambda batch: F.cross_entropy(model(batch[0]), batch[1], reduction="sum"))
    assert model[0].calls == [8]
    assert acc.advice is None


def test_random_numbers_of_a_part_that_failed_are_drawn_again():
    budget = Overdraw(4)

    @brim.recover
    def sample(batch):
        noise = torch.rand(len(batch), dtype=torch.float64)
        return budget(batch) + noise

    torch.manual_seed(0)
    found = sample(torch.zeros(8, dtype=torch.float64))
    torch.manual_seed(0)
    assert torch.equal(found, torch.rand(8, dtype=torch.float64))


def test_numbers_are_combined_as_the_user_says():
    budget = Overdraw(3)
    count = brim.recover(combine=sum)(lambda batch: int(budget(batch).sum()))
    assert count(torch.ones(10)) == 10


def test_a_result_without_samples_is_refused_before_it_goes_wrong():
    evaluate = brim.recover(lambda batch: batch.sum())
    with pytest.raises(InputError, match=r"no value for each of 4 samples.*combine=sum"):
        evaluate(torch.ones(4))


def test_other_failures_and_the_last_one_are_raised():
    budget = Overdraw(0)
    with pytest.raises(OutOfMemoryError, match="out of memory with a batch of 1, and that is the end"):
        brim.recover(budget)(torch.ones(4))
    with pytest.raises(ZeroDivisionError):
        brim.recover(lambda batch: 1 // 0)(torch.ones(4))


@pytest.mark.parametrize("settings", [{"microbatch": 0}, {"microbatch": 2.5}, {"step_down": [2, 4]}])
def test_bad_sizes_say_what_would_do(settings):
    with pytest.raises(InputError):
        brim.recover(**settings)(len)


def test_a_batch_that_cannot_be_cut_is_refused():
    with pytest.raises(InputError, match="no tensor with a first dimension"):
        brim.recover(lambda batch: batch)(3)
