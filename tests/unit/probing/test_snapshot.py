"""Everything that training changes comes back bit for bit."""

import gc
import random
from types import SimpleNamespace

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from brim.probing.snapshot import restored


def fingerprint(model, optimizer, scheduler=None):
    state = optimizer.state_dict()
    return (
        {name: value.numpy(force=True).tobytes() for name, value in model.state_dict().items()},
        [None if p.grad is None else p.grad.numpy().tobytes() for p in model.parameters()],
        [(m.training, type(m)) for m in model.modules()],
        {
            key: {name: v.numpy().tobytes() if isinstance(v, torch.Tensor) else v for name, v in entry.items()}
            for key, entry in state["state"].items()
        },
        state["param_groups"],
        None if scheduler is None else scheduler.state_dict(),
        random.getstate(),
        numpy.random.get_state()[1].tobytes(),
        torch.get_rng_state().numpy().tobytes(),
    )


def make(optimizer_class):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    return model, optimizer_class(model.parameters(), lr=0.1)


def train(model, optimizer, steps=2):
    model.train()
    for _ in range(steps):
        model(torch.randn(5, 4)).sum().backward()
        optimizer.step()
    random.random()
    numpy.random.rand()


@given(
    optimizer_class=st.sampled_from([torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad]),
    steps_before=st.integers(0, 2),
    zero=st.booleans(),
    mode=st.booleans(),
)
@settings(max_examples=6, deadline=None)
def test_training_in_between_leaves_no_mark(optimizer_class, steps_before, zero, mode):
    model, optimizer = make(optimizer_class)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    train(model, optimizer, steps_before)
    if zero:
        optimizer.zero_grad()
    model.train(mode)
    model[1].eval()
    before = fingerprint(model, optimizer, scheduler)
    parameters, gradients = list(model.parameters()), [p.grad for p in model.parameters()]
    with restored():
        train(model, optimizer)
        scheduler.step()
        optimizer.param_groups[0]["lr"] = 7.0
        assert fingerprint(model, optimizer, scheduler) != before
    assert fingerprint(model, optimizer, scheduler) == before
    assert all(now is then for now, then in zip(model.parameters(), parameters, strict=True))
    assert all(p.grad is grad for p, grad in zip(model.parameters(), gradients, strict=True))


def test_a_change_of_precision_is_undone():
    model, optimizer = make(torch.optim.SGD)
    with restored():
        model.half()
    assert all(parameter.dtype is torch.float32 for parameter in model.parameters())
    train(model, optimizer, 1)


@restored()
def train_and_fail(model, optimizer):
    train(model, optimizer)
    raise ZeroDivisionError


def test_everything_is_put_back_after_an_exception():
    model, optimizer = make(torch.optim.SGD)
    before = fingerprint(model, optimizer)
    with pytest.raises(ZeroDivisionError):
        train_and_fail(model, optimizer)
    assert fingerprint(model, optimizer) == before


OWN_GENERATOR = torch.Generator()


@pytest.fixture
def unfrozen():
    """Let generators of files that were imported before the first test be found."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("unfrozen")
def test_generators_of_the_users_own_are_put_back():
    holder = SimpleNamespace(generator=torch.Generator())
    before = [generator.get_state() for generator in (OWN_GENERATOR, holder.generator)]
    with restored():
        for generator in (OWN_GENERATOR, holder.generator):
            torch.rand(3, generator=generator)
    after = [generator.get_state() for generator in (OWN_GENERATOR, holder.generator)]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
