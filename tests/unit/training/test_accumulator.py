"""Accumulated gradients are those of the whole batch."""

import copy
import io
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.training.gradients import (
    IGNORED,
    loss_sum,
    make_batch,
    make_model,
    record_gradients,
    train_on_full_batches,
)
from torch import nn
from torch.nn import functional as F

import brim

microbatches = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)).filter(any), min_size=1, max_size=11)


@settings(deadline=None, max_examples=60)
@given(microbatches, st.integers(1, 5), st.sampled_from([None, 0.05]))
def test_every_window_has_the_gradient_of_its_full_batch(sizes, accumulation, clip_norm):
    batches = [make_batch(*size, seed=k) for k, size in enumerate(sizes)]
    windows = [batches[k : k + accumulation] for k in range(0, len(batches), accumulation)]
    model, twin = make_model(), make_model()
    truth = train_on_full_batches(twin, windows, clip_norm=clip_norm)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = record_gradients(optimizer)
    acc = brim.Accumulator(model, optimizer, accumulation=accumulation, clip_norm=clip_norm)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Window .* holds no items")
        updated = [acc.backward(loss_sum(model, x, y), items=int((y != IGNORED).sum())) for x, y in batches]
        updated.append(acc.finish())

    assert sum(updated) == acc.num_updates == len(truth) == len(gradients)
    for gradient, true in zip(gradients, truth, strict=True):
        torch.testing.assert_close(gradient, true, rtol=1e-10, atol=1e-13)


@settings(deadline=None, max_examples=12)
@given(st.integers(1, 12), st.integers(1, 6))
def test_a_whole_batch_is_cut_and_has_its_own_gradient(num_samples, accumulation):
    model, twin = make_model(), make_model()
    batch = make_batch(num_samples)
    (truth,) = train_on_full_batches(twin, [[batch]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = record_gradients(optimizer)
    acc = brim.Accumulator(model, optimizer, accumulation=accumulation)
    assert acc.step(batch, lambda part: loss_sum(model, *part))
    assert acc.items == num_samples
    torch.testing.assert_close(gradients[0], truth, rtol=1e-10, atol=1e-13)


def test_mean_of_means_is_not_what_comes_out():
    # Sums 2 (1 token) and 3 (3 tokens): 1.25, not 1.5.
    weight = nn.Parameter(torch.ones((), dtype=torch.float64))
    model = nn.Module()
    model.weight = weight
    optimizer = torch.optim.SGD([weight], lr=1.0)
    gradients = record_gradients(optimizer)
    acc = brim.Accumulator(model, optimizer, accumulation=2)
    acc.backward(weight * 2, items=1)
    acc.backward(weight * 3, items=3)
    assert gradients[0].item() == 1.25
    assert acc.loss == 1.25


def test_the_tail_of_ten_microbatches_in_windows_of_four_weighs_as_much_as_the_others():
    model = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    gradients = record_gradients(optimizer)
    acc = brim.Accumulator(model, optimizer, accumulation=4)
    for _ in range(10):
        acc.backward(model(torch.ones(2, 1)).sum(), items=2)
    acc.finish()
    assert [gradient.item() for gradient in gradients] == [1.0, 1.0, 1.0]


def test_step_takes_items_from_the_loss_function():
    model = make_model()
    acc = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=2)
    x, y = make_batch(5, 3)
    assert acc.step({"x": x, "y": y}, lambda part: (loss_sum(model, **part), (part["y"] != IGNORED).sum()))
    assert acc.items == 5


def test_finishing_twice_updates_once():
    model = make_model()
    acc = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=4)
    acc.backward(loss_sum(model, *make_batch(2)), items=2)
    assert acc.finish()
    after = copy.deepcopy(model.state_dict())
    assert not acc.finish()
    assert acc.num_updates == 1
    torch.testing.assert_close(dict(model.state_dict()), dict(after), rtol=0, atol=0)


def test_the_loss_is_the_mean_over_the_windows_items():
    model = make_model()
    batches = [make_batch(4, seed=1), make_batch(1, 2, seed=2)]
    with torch.no_grad():
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        truth = F.cross_entropy(model(x), y, ignore_index=IGNORED).item()
    acc = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=2)
    assert acc.loss is None
    for x, y in batches:
        acc.backward(loss_sum(model, x, y), items=(y != IGNORED).sum())
    assert acc.loss == pytest.approx(truth, rel=1e-12)


def test_several_optimizers_and_schedulers_step_once_a_window():
    model = make_model()
    optimizers = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters(), lr=0.1)]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in optimizers]
    acc = brim.Accumulator(model, optimizers, accumulation=2, scheduler=schedulers)
    for k in range(5):
        acc.backward(loss_sum(model, *make_batch(2, seed=k)), items=2)
    acc.finish()
    assert acc.num_updates == 3
    assert [optimizer.param_groups[0]["lr"] for optimizer in optimizers] == [0.1 / 8, 0.1 / 8]
    assert {int(state["step"]) for state in optimizers[1].state.values()} == {3}


def test_a_scheduler_that_goes_by_the_loss_is_given_the_windows():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=1e9, threshold_mode="abs")
    acc = brim.Accumulator(model, optimizer, accumulation=1, scheduler=scheduler)
    for k in range(3):
        acc.backward(loss_sum(model, *make_batch(2, seed=k)), items=2)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.1**2)


def test_the_norm_is_clipped_over_all_optimizers_after_weighting():
    model = make_model()
    optimizers = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.SGD(model[2].parameters(), lr=0.1)]
    recorded = [record_gradients(optimizer) for optimizer in optimizers]
    acc = brim.Accumulator(model, optimizers, accumulation=1, clip_norm=0.01)
    acc.backward(loss_sum(model, *make_batch(64)), items=64)
    assert torch.cat([recorded[0][0], recorded[1][0]]).norm().item() == pytest.approx(0.01, rel=1e-3)
    assert 0.01 < acc.grad_norm.item() < 10


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 9), st.integers(1, 4))
def test_a_window_goes_on_where_it_was_saved(num_before, accumulation):
    batches = [make_batch(1 + k % 3, seed=k) for k in range(10)]
    model, twin = make_model(), make_model()
    straight = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=accumulation)
    for x, y in batches:
        straight.backward(loss_sum(model, x, y), items=len(y))
    straight.finish()

    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    acc = brim.Accumulator(twin, optimizer, accumulation=accumulation)
    for x, y in batches[:num_before]:
        acc.backward(loss_sum(twin, x, y), items=len(y))
    file = io.BytesIO()
    torch.save({"model": twin.state_dict(), "acc": acc.state_dict()}, file)
    acc.backward(loss_sum(twin, *batches[0]), items=3)  # what happens after saving must not be in what was saved

    file.seek(0)
    saved = torch.load(file)
    resumed = make_model(seed=1)
    resumed.load_state_dict(saved["model"])
    acc = brim.Accumulator(resumed, torch.optim.SGD(resumed.parameters(), lr=0.1), accumulation=accumulation)
    acc.load_state_dict(saved["acc"])
    for x, y in batches[num_before:]:
        acc.backward(loss_sum(resumed, x, y), items=len(y))
    acc.finish()
    assert acc.num_updates == straight.num_updates
    torch.testing.assert_close(dict(resumed.state_dict()), dict(model.state_dict()), rtol=1e-12, atol=1e-14)
