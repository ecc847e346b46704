"""Mixed precision: the scaler unscales once, sees gradients of the size of a mean, and skips on all accounts."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import brim

NUM_TOKENS = 4096


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))


def make_batch(num_tokens: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_tokens, 16, generator=generator), torch.randint(0, 8, (num_tokens,), generator=generator)


def loss_in_half(model: nn.Module, x: torch.Tensor, y: torch.Tensor, reduction: str) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.float16):
        return F.cross_entropy(model(x).float(), y, reduction=reduction)


@pytest.mark.parametrize("clip_norm", [None, 0.01])
def test_updates_are_those_of_a_mean_loss_scaled_by_hand(clip_norm):
    batches = [make_batch(NUM_TOKENS, seed) for seed in range(4)]
    by_hand = make_model()
    optimizer, scaler = torch.optim.SGD(by_hand.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    for window in (batches[:2], batches[2:]):
        for x, y in window:
            scaler.scale(loss_in_half(by_hand, x, y, "mean") / 2).backward()
        scaler.unscale_(optimizer)
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(by_hand.parameters(), clip_norm)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    model = make_model()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
    acc = brim.Accumulator(model, optimizer, accumulation=2, clip_norm=clip_norm, scaler=scaler)
    updated = [acc.backward(loss_in_half(model, x, y, "sum"), items=len(y)) for x, y in batches]
    # A sum over thousands of tokens, times a scale of 65,536, would not fit into 16 bits: no update may be lost.
    assert updated == [False, True, False, True]
    assert scaler.get_scale() == 2.0**16
    torch.testing.assert_close(dict(model.state_dict()), dict(by_hand.state_dict()), rtol=1e-3, atol=1e-5)


def test_a_skipped_step_is_no_update():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    acc = brim.Accumulator(model, optimizer, accumulation=1, scaler=scaler, scheduler=scheduler)
    assert not acc.backward(loss_in_half(model, *make_batch(8), "sum"), items=8)
    assert acc.num_updates == 0
    assert scaler.get_scale() == 2.0**59
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert acc.loss is not None


def test_an_optimizer_without_gradients_does_not_trouble_the_scaler():
    model, other = make_model(), nn.Linear(2, 2)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(other.parameters(), lr=0.1)]
    acc = brim.Accumulator(model, optimizers, accumulation=1, scaler=torch.amp.GradScaler("cpu"))
    loss = loss_in_half(model, *make_batch(8), "sum")
    with pytest.warns(UserWarning, match="one that is not in the model"):
        assert acc.backward(loss, items=8)


def test_a_disabled_scaler_changes_nothing():
    model, twin = make_model(), make_model()
    for net, scaler in ((model, None), (twin, torch.amp.GradScaler("cpu", enabled=False))):
        acc = brim.Accumulator(net, torch.optim.SGD(net.parameters(), lr=0.1), accumulation=2, scaler=scaler)
        x, y = make_batch(12)
        assert acc.step((x, y), lambda part, net=net: F.cross_entropy(net(part[0]), part[1], reduction="sum"))
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()), rtol=0, atol=0)
