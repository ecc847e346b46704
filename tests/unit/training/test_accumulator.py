import copy
import io
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import brim
from brim.errors import InputError, NonFiniteLossError

IGNORED = -100


def make_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()


def make_batch(num_items: int, num_ignored: int = 0, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    size = num_items + num_ignored
    x = torch.randn(size, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 4, (size,), generator=generator)
    y[num_items:] = IGNORED
    return x, y


def loss_sum(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y, ignore_index=IGNORED, reduction="sum")


def record_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Keep the gradient of every update as one vector."""
    recorded = []

    def record(optimizer: torch.optim.Optimizer, *_: object) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        recorded.append(torch.cat([p.grad.detach().reshape(-1).clone() for p in parameters]))

    optimizer.register_step_pre_hook(record)
    return recorded


def train_on_full_batches(model: nn.Module, windows, *, clip_norm: float | None = None) -> list[torch.Tensor]:
    """The truth: one forward and one backward pass for each window."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = record_gradients(optimizer)
    for window in windows:
        x, y = (torch.cat(parts) for parts in zip(*window, strict=True))
        if not (y != IGNORED).any():
            continue
        optimizer.zero_grad()
        F.cross_entropy(model(x), y, ignore_index=IGNORED).backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
    return gradients


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


@settings(deadline=None, max_examples=40)
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
