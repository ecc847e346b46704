"""A window that runs out of memory begins again, smaller, as if the failure had not happened."""

import copy
import logging
import random
import runpy
import subprocess
import sys
import weakref
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import brim
from brim.errors import InputError, OutOfMemoryError
from brim.training import recovery

WORKLOADS = Path(__file__).parents[2] / "workloads"
names = runpy.run_path(str(WORKLOADS / "overdraw.py"))
Overdraw, overdraw = names["Overdraw"], names["overdraw"]
PLACES = ["forward", "backward"]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


class Net(nn.Module):
    """Repeated blocks and something that runs out of memory; BatchNorm and dropout where asked for."""

    def __init__(self, limit: int | None = None, place: str = "forward", *, is_random: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(3, 6)
        self.norm = nn.BatchNorm1d(6) if is_random else nn.Identity()
        self.budget = Overdraw(limit, place)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.last = nn.Linear(6, 4)
        self.double()
        if not is_random:
            for block in self.blocks:
                block.layers[2].p = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.budget(self.norm(self.first(x)))
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def make_batch(size: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 3, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 4, (size,), generator=generator)


def loss_of(model: nn.Module):
    return lambda batch: F.cross_entropy(model(batch[0]), batch[1], reduction="sum")


def make(model: nn.Module, accumulation: int = 1, **settings: object) -> brim.Accumulator:
    return brim.Accumulator(
        model, torch.optim.AdamW(model.parameters(), lr=0.01), accumulation=accumulation, **settings
    )


def fingerprint(model: nn.Module) -> tuple[object, ...]:
    state = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
    return state, random.getstate(), numpy.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()


@settings(max_examples=10)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 12), st.sampled_from(PLACES))
def test_the_gradient_after_an_out_of_memory_is_that_of_the_full_batch(size, accumulation, limit, place):
    model, twin = Net(limit, place), Net()
    batch, found = make_batch(size), []
    F.cross_entropy(twin(batch[0]), batch[1]).backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: found.extend(p.grad.clone() for p in model.parameters()))
    acc = brim.Accumulator(model, optimizer, accumulation=accumulation)
    assert acc.step(batch, loss_of(model))
    for gradient, parameter in zip(found, twin.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-10, atol=1e-13)
    assert (acc.items, acc.num_updates) == (size, 1)
    assert (acc.advice is None) == (-(-size // min(size, accumulation)) <= limit)


@pytest.mark.parametrize("place", PLACES)
def test_batchnorm_dropout_and_random_numbers_are_as_if_the_failure_had_not_happened(place):
    fingerprints = []
    for limit, accumulations in ((None, (1, 4, 4)), (2, (1, 1, 1))):
        model = Net(is_random=True)
        model.budget.place = place
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        own = torch.Generator().manual_seed(1)

        def loss_fn(batch, model=model, own=own):
            shift = random.random() + numpy.random.rand() + torch.rand((), generator=own).item()
            return loss_of(model)((batch[0] + shift, batch[1]))

        random.seed(0)
        numpy.random.seed(0)
        for window, accumulation in enumerate(accumulations):
            if window == 1:
                model.budget.limit = limit
            if window == 0 or limit is None:
                acc = brim.Accumulator(model, optimizer, accumulation=accumulation)
            acc.step(make_batch(8, seed=window), loss_fn)
        fingerprints.append((fingerprint(model), own.get_state().numpy().tobytes()))
    assert fingerprints[0] == fingerprints[1]


def test_every_change_is_one_line_and_the_end_says_what_to_set(caplog):
    model = Net(limit=3)
    acc = make(model, accumulation=2)
    with caplog.at_level(logging.WARNING, "brim"):
        for seed in range(3):
            acc.step(make_batch(24, seed), loss_of(model))
    assert [record.getMessage() for record in caplog.records] == [
        "Window 1: out of memory with microbatches of 12; going on with 6. The effective batch stays the same.",
        "Window 1: out of memory with microbatches of 6; going on with 3. The effective batch stays the same.",
    ]
    assert acc.advice == "Next time begin with accumulation=8 for batches of 24 samples (microbatches of at most 3)."
    assert model.budget.calls == [12, 6] + [3] * 24


def test_the_process_says_at_its_end_what_to_set_next_time():
    code = (
        "import torch, brim; from overdraw import Overdraw\n"
        "model = torch.nn.Sequential(Overdraw(limit=2), torch.nn.Linear(1, 1))\n"
        "acc = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=1)\n"
        "acc.step(torch.ones(4, 1), lambda batch: model(batch).sum())\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=WORKLOADS, capture_output=True, text=True, check=True)
    assert run.stderr.splitlines() == [
        "Window 1: out of memory with microbatches of 4; going on with 2. The effective batch stays the same.",
        "Next time begin with accumulation=2 for batches of 4 samples (microbatches of at most 2).",
    ]


def test_the_plans_list_is_followed_and_checkpointing_comes_at_its_end(caplog):
    model, twin = Net(), Net()
    acc = make(model, step_down=[10, 7], checkpointing=True)

    def loss_fn(batch):
        is_checkpointed = "forward" in vars(model.blocks[0])
        model.budget.limit = None if is_checkpointed else 4
        return loss_of(model)(batch)

    assert acc.step(make_batch(10), loss_fn)
    assert model.budget.calls == [10, 5, 5, 5]
    assert "Window 1: out of memory with microbatches of 5; switching checkpointing on" in caplog.text
    assert acc.advice.endswith("(microbatches of at most 5) and checkpointing switched on.")
    make(twin).step(make_batch(10), loss_of(twin))
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_dropout_under_checkpointing_gets_its_random_numbers_again():
    plain, checkpointed = Net(is_random=True), Net(limit=4, is_random=True)
    torch.manual_seed(3)
    make(plain, accumulation=2).step(make_batch(8), loss_of(plain))
    acc = make(checkpointed, accumulation=1, step_down=[4], checkpointing=True)
    acc.load_state_dict({**acc.state_dict(), "recovery": {"limit": 4, "num_steps": 2, "is_checkpointed": True}})
    torch.manual_seed(3)
    acc.step(make_batch(8), loss_of(checkpointed))
    for ours, theirs in zip(checkpointed.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("place", PLACES)
def test_at_the_end_of_the_way_down_everything_is_as_before(place):
    model = Net(limit=0, place=place, is_random=True)
    acc = make(model, step_down=[8, 2])  # BatchNorm cannot train on one sample
    before = fingerprint(model)
    with pytest.raises(OutOfMemoryError, match=r"out of memory with microbatches of 2, and that is the end") as caught:
        acc.step(make_batch(8), loss_of(model))
    assert caught.value.microbatch == 2
    assert "DefaultCPUAllocator" in str(caught.value.__cause__)
    assert fingerprint(model) == before
    assert all(parameter.grad is None for parameter in model.parameters())
    model.budget.limit = None
    assert acc.step(make_batch(2), loss_of(model))


@pytest.mark.parametrize("size", [8, 9])
def test_batchnorm_that_would_get_one_sample_is_the_end_and_says_so(size):
    model = Net(limit=1 if size == 8 else 2, is_random=True)
    before = fingerprint(model)
    with pytest.raises(
        OutOfMemoryError, match=r"^Window 1: BatchNorm cannot train on a microbatch of one sample.*GroupNorm"
    ) as caught:
        make(model).step(make_batch(size), loss_of(model))
    assert "Expected more than 1 value per channel" in str(caught.value.__cause__)
    assert fingerprint(model) == before


def test_batchnorm_goes_back_to_two_samples_where_checkpointing_may_help(caplog):
    model = Net(is_random=True)
    acc = make(model, step_down=[8, 2, 1], checkpointing=True)

    def loss_fn(batch):
        model.budget.limit = None if "forward" in vars(model.blocks[0]) else 1
        return loss_of(model)(batch)

    assert acc.step(make_batch(8), loss_fn)
    assert model.budget.calls == [8, 2, 2, 2, 2, 2], "checkpointing came with microbatches of 2"
    assert "switching checkpointing on, with microbatches of 2" in caplog.text


def test_a_batch_of_one_sample_for_batchnorm_is_the_users_own_error():
    model = Net(limit=4, is_random=True)
    acc = make(model)
    assert acc.step(make_batch(8), loss_of(model))
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        acc.step(make_batch(1), loss_of(model))


@pytest.mark.parametrize("error", [ValueError("not memory"), RuntimeError("CUDA error: an illegal memory access")])
def test_no_other_failure_makes_microbatches_smaller(error):
    model = Net()
    acc = make(model)

    def loss_fn(batch):
        raise error

    with pytest.raises(type(error), match=str(error)):
        acc.step(make_batch(8), loss_fn)
    assert acc.advice is None
    assert acc.step(make_batch(8), loss_of(model))


def test_an_interrupt_leaves_no_half_of_a_window():
    model = Net()
    acc = make(model, accumulation=2)
    losses = iter([loss_of(model)])

    def loss_fn(batch):
        for loss in losses:
            return loss(batch)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        acc.step(make_batch(8), loss_fn)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert acc.step(make_batch(8), loss_of(model))


def test_what_did_not_fit_is_let_go_before_the_window_begins_again():
    model = Net(limit=4, place="backward")
    held, alive = [], []

    def loss_fn(batch):
        alive.append(sum(reference() is not None for reference in held))
        scores = model(batch[0])
        held.append(weakref.ref(scores))
        return F.cross_entropy(scores, batch[1], reduction="sum")

    make(model).step(make_batch(8), loss_fn)
    assert alive == [0, 0, 0]


@pytest.mark.parametrize("is_first", [True, False])
def test_an_update_that_runs_out_of_memory_leaves_no_half_of_it(is_first):
    model = Net(limit=None if is_first else 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    acc = brim.Accumulator(model, optimizer, accumulation=1)
    if not is_first:  # then a window that had run out of memory before
        acc.step(make_batch(4), loss_of(model))
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    optimizer.register_step_post_hook(lambda *_: overdraw())  # all is changed by then
    with pytest.raises(OutOfMemoryError, match="out of memory in the update, which no smaller microbatch changes"):
        acc.step(make_batch(8), loss_of(model))
    torch.testing.assert_close((model.state_dict(), optimizer.state_dict()), before, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_repeated_allocator_retries_make_microbatches_smaller(monkeypatch, caplog):
    # No CPU has such an allocator: a count that rises in every window stands in for CUDA's.
    counts = iter(range(100))
    monkeypatch.setattr(recovery, "num_retries", lambda device_name: next(counts))
    model = Net()
    acc = make(model)
    for seed in range(4):
        acc.step(make_batch(8, seed), loss_of(model))
    assert model.budget.calls == [8, 8, 8, 4, 4]
    reason = "Window 3: the allocator had to try again in 3 windows in a row with microbatches of 8"
    assert f"{reason}; going on with 4." in caplog.text


def test_a_window_without_a_retry_starts_the_count_anew(monkeypatch):
    counts = iter([0, 1, 2, 2, 3, 4, 4])
    monkeypatch.setattr(recovery, "num_retries", lambda device_name: next(counts))
    model = Net()
    acc = make(model)
    for seed in range(6):
        acc.step(make_batch(8, seed), loss_of(model))
    assert model.budget.calls == [8] * 6


def test_a_resumed_run_begins_with_the_smaller_microbatches():
    model = Net(limit=2)
    acc = make(model)
    acc.step(make_batch(8), loss_of(model))
    resumed = make(model)
    resumed.load_state_dict(copy.deepcopy(acc.state_dict()))
    model.budget.calls.clear()
    resumed.step(make_batch(8), loss_of(model))
    assert model.budget.calls == [2, 2, 2, 2]


def test_a_state_from_before_recovery_still_loads():
    model = Net()
    acc = make(model)
    state = acc.state_dict()
    del state["recovery"]
    acc.load_state_dict(state)
    assert acc.step(make_batch(2), loss_of(model))


def test_without_recovery_the_error_is_torchs_own():
    model = Net(limit=2)
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        make(model, recover=False).step(make_batch(8), loss_of(model))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"step_down": [4, 8]}, "Give falling sizes"),
        ({"step_down": [4], "recover": False}, "recover is False"),
        ({"checkpointing": True, "recover": False}, "recover is False"),
    ],
)
def test_bad_settings_say_what_would_do(settings, message):
    with pytest.raises(InputError, match=message):
        make(Net(), **settings)


def test_checkpointing_that_would_change_the_training_is_refused():
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)) for _ in range(2)))
    with pytest.raises(InputError, match="BatchNorm in its blocks would count every batch twice"):
        make(nn.Sequential(blocks), checkpointing=True)
    with pytest.raises(InputError, match="it has no repeated blocks"):
        make(nn.Linear(3, 3), checkpointing=True)
