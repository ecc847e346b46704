import random
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

import brim
import brim.tracing.sizes as sizes
from brim.cases import Case
from brim.devices.catalog import Gpu
from brim.errors import TraceError
from brim.tracing import predict

LARGE = Gpu(name="large", memory_bytes=8 * 2**30, capability=(8, 6))
SMALL = Gpu(name="small", memory_bytes=2**30, capability=(8, 6))


class Train(brim.Workload):
    def build(self):
        self.model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters())

    def batch(self, size):
        return torch.randn(size, 64, device=self.device)

    def step(self, batch):
        self.model(batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Normalizes(Train):
    def build(self):
        layers = nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Dropout(), nn.Linear(256, 8)
        self.model = nn.Sequential(*layers).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters())


class Padded(Train):
    def batch(self, size):
        return super().batch(-(-size // 8) * 8)


class Capped(Train):
    def batch(self, size):
        return super().batch(min(size, 16))


class Threshold(Train):
    """Needs a large tensor more above a few samples, as some kernels do."""

    def step(self, batch):
        if len(batch) > 1000:
            (batch @ torch.randn(64, 4096, device=self.device)).mul(2)
        super().step(batch)


class Shrinks(Train):
    """Makes something smaller for more samples, as a size of chance may be."""

    def step(self, batch):
        torch.empty(max(1, 2**14 - 64 * len(batch)), device=self.device)
        super().step(batch)


class Accumulates(Train):
    def step(self, batch):
        for part in batch.split(32):
            self.model(part).square().mean().backward()
        self.optimizer.step()


@pytest.fixture
def traced(monkeypatch):
    """The sizes that were traced, in order."""
    asked, trace = [], sizes.trace

    def note(workload_class, case, microbatch, **settings):
        asked.append(microbatch)
        return trace(workload_class, case, microbatch, **settings)

    monkeypatch.setattr(sizes, "trace", note)
    return asked


@pytest.mark.parametrize("cap", [100, None])
def test_a_batch_that_stops_growing_is_refused_with_how_many_samples_it_has(cap):
    prediction = predict(Capped, gpu=SMALL, cap=cap)
    with pytest.raises(TraceError, match=r"returns 16 samples where it is asked for .* with --cap 16"):
        _ = prediction.largest


def test_so_is_one_whose_samples_are_not_its_first_dimension():
    class Columns(Capped):
        def batch(self, size):
            return super().batch(size).T.contiguous()

        def step(self, batch):
            super().step(batch.T)

    prediction = predict(Columns, gpu=SMALL)
    with pytest.raises(TraceError, match="does not grow with the microbatch"):
        _ = prediction.largest


def test_so_is_one_whose_samples_are_one_tensor_run_one_by_one():
    class OneByOne(Train):
        kind = "eval"

        def build(self):
            super().build()
            self.sample = torch.randn(1, 64, device=self.device)

        def batch(self, size):
            return [self.sample] * size

        @torch.no_grad()
        def step(self, batch):
            for sample in batch:
                self.model(sample)

    with pytest.raises(TraceError, match="does not grow with the microbatch"):
        _ = predict(OneByOne, gpu=SMALL, cap=64).largest


def test_a_dataset_that_has_ended_is_told_with_the_line():
    class Ends(Train):
        def batch(self, size):
            return next(iter([super().batch(size)] if size < 100 else []))

    prediction = predict(Ends, gpu=SMALL)
    with pytest.raises(TraceError, match=r"test_sizes\.py:.*has too few samples"):
        _ = prediction.largest


class Seldom(Train):
    """Updates its weights after every so many batches."""

    every = 4

    def build(self):
        super().build()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.num_steps = 0

    def step(self, batch):
        self.num_steps += 1
        self.model(batch).sum().backward()
        if self.num_steps % self.every == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()


def test_an_optimizer_that_steps_seldom_is_waited_for():
    prediction = predict(Seldom, gpu=SMALL)
    weights = prediction.breakdown(8)["parameters"]
    assert prediction.breakdown(8)["optimizer"] >= 2 * weights
    assert not prediction.observed.is_waiting


def test_an_optimizer_that_is_never_seen_to_step_is_told():
    class Never(Seldom):
        every = 1000

    assert predict(Never, gpu=SMALL).observed.is_waiting


def test_random_numbers_give_the_same_answer_each_time_for_the_largest_of_some_draws():
    class Chance(Train):
        def step(self, batch):
            for _ in range(random.choice((1, 2, 3))):
                batch = batch.clone()
                self.kept = batch.clone()
            super().step(batch)

    class Most(Chance):
        def step(self, batch):
            with mock.patch.object(random, "choice", max):
                super().step(batch)

    state = random.getstate()
    answers = [predict(Chance, gpu=SMALL) for _ in range(3)]
    assert len({each.largest for each in answers}) == 1
    assert all(each.observed.is_random for each in answers)
    assert random.getstate() == state
    assert not predict(Most, gpu=SMALL).observed.is_random
    assert answers[0].peak(8) == predict(Most, gpu=SMALL).peak(8)


@pytest.mark.parametrize("make", [random.Random, np.random.default_rng, np.random.RandomState])
def test_a_generator_of_its_own_draws_the_same_in_every_trace(make):
    class Own(Train):
        def build(self):
            super().build()
            self.chance = make()

        def step(self, batch):
            for _ in range(1 + int(8 * self.chance.random())):
                batch = batch.clone()
                self.kept = batch.clone()
            super().step(batch)

    class Seeded(Own):
        def build(self):
            super().build()
            self.chance = make(7)

    assert not predict(Seeded, gpu=SMALL).observed.is_random
    answers = [predict(Own, gpu=SMALL) for _ in range(2)]
    assert answers[0].largest == answers[1].largest
    assert all(each.observed.is_random for each in answers)
    assert make().random() != make().random()


def test_a_batch_padded_to_a_multiple_grows(traced):
    prediction = predict(Padded, gpu=SMALL)
    assert prediction.stopped_by == "memory"
    assert prediction.fits(prediction.largest)
    assert not prediction.fits(prediction.above)
    assert len(traced) <= 16


def test_off_the_line_the_answer_was_traced_and_its_bounds_lie_around_it(traced):
    prediction = predict(Threshold, gpu=LARGE)
    low, high = prediction.interval
    assert not prediction.is_exact
    assert {prediction.largest, prediction.above} <= set(traced)
    assert len(traced) <= 12
    assert prediction.largest * 0.85 < low < prediction.largest < high < prediction.largest * 1.15


def test_what_is_smaller_for_more_samples_is_not_continued_below_nothing():
    prediction = predict(Shrinks, gpu=LARGE, cap=200)
    assert not prediction.is_exact
    assert prediction.largest == 200


def test_bounds_at_a_jump_are_the_ends_of_what_was_traced():
    class Jumps(Train):
        def step(self, batch):
            if len(batch) > 1000:
                torch.empty(2**34, device=self.device)
            super().step(batch)

    prediction = predict(Jumps, gpu=LARGE)
    assert 500 < prediction.largest <= 1000 < prediction.above
    low, high = prediction.interval
    assert low == prediction.largest
    assert 1000 <= high < prediction.above


def test_where_larger_sizes_take_too_long_to_trace_the_search_ends_there(traced, monkeypatch):
    monkeypatch.setattr(sizes, "_MOST_OPERATIONS", 3000)
    monkeypatch.setattr(sizes, "_FAR", 512)
    prediction = predict(Accumulates, gpu="h100-sxm")
    assert prediction.stopped_by == "time"
    assert prediction.largest == max(traced) < 10_000
    assert prediction.interval == (prediction.largest, prediction.largest)


def test_samples_loaded_one_by_one_are_not_all_loaded_to_confirm_the_line(traced, monkeypatch):
    class Loads(Train):
        def batch(self, size):
            return torch.stack([torch.from_numpy(np.ones(64, np.float32)) for _ in range(size)]).to(self.device)

    monkeypatch.setattr(sizes, "_MOST_OPERATIONS", 3000)
    monkeypatch.setattr(sizes, "_FAR", 512)
    prediction = predict(Loads, gpu=SMALL)
    assert prediction.stopped_by == "memory"
    assert prediction.is_exact
    assert max(traced) < 3000 < prediction.largest == predict(Train, gpu=SMALL).largest


def test_a_size_that_was_traced_is_no_longer_what_the_line_said():
    class OneApart(Train):
        def step(self, batch):
            if len(batch) == 1:
                torch.empty(2**26, device=self.device)
            super().step(batch)

    prediction = predict(OneApart, gpu=SMALL)
    by_line = prediction.peak(1).allocated_bytes
    assert not prediction._traced.confirm(1)
    assert prediction.peak(1).allocated_bytes >= by_line + 4 * 2**26 - 2**20
    assert prediction.is_exact


def test_an_answer_that_is_the_cap_is_told_apart_from_one_of_memory():
    capped, full = predict(Train, gpu=SMALL, cap=64), predict(Train, gpu=SMALL)
    assert (capped.stopped_by, capped.above, capped.shown_sizes()) == ("cap", None, [1, 64])
    assert (full.stopped_by, full.above) == ("memory", full.largest + 1)
    assert capped.to_dict("x")["stopped_by"] == "cap"


def test_a_larger_size_that_fits_by_accident_is_told():
    # Found by trying sizes of memory: one where the allocator cuts a segment badly.
    prediction = predict(Normalizes, gpu=Gpu(name="odd", memory_bytes=670 * 2**20, capability=(8, 6)))
    assert not prediction.fits(prediction.above)
    assert prediction.above < prediction.fits_above <= prediction.interval[1]
    assert prediction.fits(prediction.fits_above)
    assert prediction.to_dict("x")["fits_above"] == prediction.fits_above
    assert prediction.unfit_below is None or not prediction.fits(prediction.unfit_below)


def test_a_long_trace_says_that_it_goes_on(monkeypatch):
    monkeypatch.setattr("brim.tracing.recorder._TOLD_OPERATIONS", 10)
    told = []
    sizes.TracedSizes(Train, Case(), capability=(8, 6), tell=told.append)
    assert told[0] == "tracing default at 4: 10 operations so far"
    assert any(" at 6: " in line for line in told)
