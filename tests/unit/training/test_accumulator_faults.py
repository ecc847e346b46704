"""What an accumulator refuses, and what it does when a loss, a state or a pass is no good."""

import copy

import pytest
import torch
from tests.unit.training.gradients import (
    loss_sum,
    make_batch,
    make_model,
    record_gradients,
    train_on_full_batches,
)
from torch import nn

import brim
from brim.errors import InputError, NonFiniteLossError


def test_a_state_of_another_model_is_refused():
    model, other = make_model(), nn.Linear(2, 2).double()
    acc = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=2)
    acc.backward(loss_sum(model, *make_batch(2)), items=2)
    state = acc.state_dict()
    with pytest.raises(InputError, match="4 gradients that do not fit the optimizers' 2 parameters"):
        brim.Accumulator(other, torch.optim.SGD(other.parameters(), lr=0.1), accumulation=2).load_state_dict(state)


@pytest.mark.parametrize("state", [{}, None])
def test_what_is_no_state_is_refused(state):
    model = make_model()
    acc = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=2)
    with pytest.raises(InputError, match="no state of an Accumulator"):
        acc.load_state_dict(state)


def test_a_loss_that_is_not_finite_is_named_and_nothing_is_updated():
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    acc = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=3)
    x, y = make_batch(2)
    acc.backward(loss_sum(model, x, y), items=2)
    acc.backward(loss_sum(model, x * float("nan"), y), items=2)
    with pytest.raises(NonFiniteLossError, match="Microbatch 2 of window 1 has a loss of nan") as caught:
        acc.backward(loss_sum(model, x, y), items=2)
    assert (caught.value.microbatch, caught.value.window, caught.value.rank) == (2, 1, 0)
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)
    # The window is dropped, and the next one is a window like any other.
    assert [acc.backward(loss_sum(model, x, y), items=2) for _ in range(3)] == [False, False, True]
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_microbatch_that_is_not_finite_can_be_left_out(bad):
    batches = [make_batch(2 + k, seed=k) for k in range(3)]
    model, twin = make_model(), make_model()
    (truth,) = train_on_full_batches(twin, [[batch for k, batch in enumerate(batches) if k != bad]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = record_gradients(optimizer)
    acc = brim.Accumulator(model, optimizer, accumulation=3, on_nan="skip")
    losses = [loss_sum(model, x, y) * (float("inf") if k == bad else 1.0) for k, (x, y) in enumerate(batches)]
    with pytest.warns(UserWarning, match=f"Microbatch {bad + 1} of window 1 has a loss of inf: it is left out"):
        updated = [acc.backward(loss, items=len(y)) for loss, (_, y) in zip(losses, batches, strict=True)]
    assert updated == [False, False, True]
    torch.testing.assert_close(gradients[0], truth, rtol=1e-10, atol=1e-13)


def test_a_window_without_items_updates_nothing_and_says_so():
    model = make_model()
    acc = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=2)
    acc.backward(loss_sum(model, *make_batch(0, 3)), items=0)
    with pytest.warns(UserWarning, match="Window 1 holds no items"):
        assert not acc.backward(loss_sum(model, *make_batch(0, 2)), items=0)
    assert acc.loss is None
    assert acc.num_updates == 0
    acc.backward(loss_sum(model, *make_batch(2)), items=2)
    assert acc.finish()


def test_parameters_without_a_gradient_are_named_once():
    model = make_model()
    model.add_module("head", nn.Linear(3, 3).double())
    frozen = model[0].weight.requires_grad_(False)
    before = frozen.clone()
    acc = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=1)
    run = nn.Sequential(*list(model)[:3])
    with pytest.warns(UserWarning, match=r"2 of 5 parameters got no gradient .*: head.weight, head.bias\."):
        acc.backward(loss_sum(run, *make_batch(2)), items=2)
    acc.backward(loss_sum(run, *make_batch(2)), items=2)  # a second warning would be an error here
    assert acc.num_updates == 2
    assert torch.equal(frozen, before)


def test_a_loss_of_another_model_is_refused():
    model, other = make_model(), make_model()
    acc = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=1)
    with pytest.raises(InputError, match="None of the optimizer's 4 parameters got a gradient"):
        acc.backward(loss_sum(other, *make_batch(2)), items=2)


def test_gradients_from_elsewhere_are_refused():
    model = make_model()
    acc = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=2)
    loss_sum(model, *make_batch(2)).backward()
    with pytest.raises(InputError, match="gradients before the first microbatch of window 1"):
        acc.backward(loss_sum(model, *make_batch(2)), items=2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"accumulation": 0}, "accumulation is 0"),
        ({"accumulation": -3}, "accumulation is -3"),
        ({"accumulation": 2.5}, "accumulation is 2.5"),
        ({"accumulation": True}, "accumulation is True"),
        ({"accumulation": 2, "clip_norm": "x"}, "clip_norm is 'x'"),
        ({"accumulation": 2, "clip_norm": 0}, "clip_norm is 0"),
        ({"accumulation": 2, "clip_norm": float("nan")}, "clip_norm is nan"),
        ({"accumulation": 2, "on_nan": "ignore"}, "on_nan is 'ignore'"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(settings, message):
    model = make_model()
    with pytest.raises(InputError, match=message):
        brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), **settings)


def test_what_is_no_optimizer_is_refused():
    model = make_model()
    with pytest.raises(InputError, match="The optimizer is generator"):
        brim.Accumulator(model, model.parameters(), accumulation=2)
    with pytest.raises(InputError, match="The optimizer is missing"):
        brim.Accumulator(model, [], accumulation=2)
    with pytest.raises(InputError, match="LBFGS runs the model by itself"):
        brim.Accumulator(model, torch.optim.LBFGS(model.parameters()), accumulation=2)


def test_losses_and_items_that_cannot_be_used_are_refused():
    model = make_model()
    acc = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=1)
    x, y = make_batch(2)
    with pytest.raises(InputError, match=r"Tensor of shape \(2, 4\)"):
        acc.backward(model(x), items=2)
    with pytest.raises(InputError, match="The loss is a float"):
        acc.backward(1.5, items=2)
    with pytest.raises(InputError, match="The loss needs no gradient"):
        acc.backward(loss_sum(model, x, y).detach(), items=2)
    for items in (None, "2", torch.tensor([1, 2])):
        with pytest.raises(InputError, match=r"items is .* one number"):
            acc.backward(loss_sum(model, x, y), items=items)
    with pytest.raises(InputError, match="items is -1"):
        acc.backward(loss_sum(model, x, y), items=-1)
    with pytest.raises(InputError, match="Microbatch 1 of window 1 was given fewer than 0 items"):
        acc.backward(loss_sum(model, x, y), items=torch.tensor(-1))


def test_a_batch_cannot_be_stepped_in_the_middle_of_a_window():
    model = make_model()
    acc = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=2)
    acc.backward(loss_sum(model, *make_batch(2)), items=2)
    with pytest.raises(InputError, match="1 of 2 microbatches"):
        acc.step(make_batch(2), lambda part: loss_sum(model, *part))


def test_a_loss_function_that_fails_leaves_no_window_behind():
    model = make_model()
    acc = brim.Accumulator(model, torch.optim.SGD(model.parameters(), lr=0.1), accumulation=2)
    calls = []

    def fail_second(part):
        calls.append(part)
        if len(calls) == 2:
            raise KeyError("of the user's own")
        return loss_sum(model, *part)

    with pytest.raises(KeyError, match="of the user's own"):
        acc.step(make_batch(4), fail_second)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert acc.step(make_batch(4), lambda part: loss_sum(model, *part))


def test_a_backward_pass_that_fails_takes_its_window_with_it():
    model, twin = make_model(), make_model()
    (truth,) = train_on_full_batches(twin, [[make_batch(2, seed=1), make_batch(3, seed=2)]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = record_gradients(optimizer)
    acc = brim.Accumulator(model, optimizer, accumulation=2)
    out = model[1](model[0](make_batch(2)[0]))
    out.register_hook(fail)  # the last layer has its gradient by then, the first has none
    loss = model[2](out).sum()
    with pytest.raises(MemoryError, match="in the backward pass"):
        acc.backward(loss, items=2)
    assert all(parameter.grad is None for parameter in model.parameters())
    for batch in (make_batch(2, seed=1), make_batch(3, seed=2)):
        acc.backward(loss_sum(model, *batch), items=len(batch[1]))
    torch.testing.assert_close(gradients[0], truth, rtol=1e-10, atol=1e-13)


def fail(_: torch.Tensor) -> None:
    raise MemoryError("in the backward pass")
