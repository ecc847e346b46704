"""Recovery from real out-of-memory errors of torch's CUDA allocator, and what it leaves behind.

On a phantom all losses and gradients are zeros. What is compared there are sizes, counts and memory; values are
compared where kernels compute.
"""

import logging

import pytest
import torch
from torch import nn

import brim
from brim.errors import OutOfMemoryError

pytestmark = pytest.mark.gpu

MIB = 2**20
WIDTH = 256
# Work space that a sample takes, in one pass or the other.
SAMPLE_BYTES = 32 * MIB


class Costly(torch.autograd.Function):
    """Takes room for each sample, in the forward or the backward pass, and changes nothing."""

    @staticmethod
    def forward(ctx, x, place):
        ctx.place = place
        take_room(x, place == "forward")
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        take_room(grad, ctx.place == "backward")
        return grad, None


def take_room(like, is_taken):
    if is_taken:
        torch.empty(len(like), SAMPLE_BYTES, dtype=torch.uint8, device=like.device)


class Net(nn.Module):
    def __init__(self, place):
        super().__init__()
        torch.manual_seed(0)
        self.place = place
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        return self.last(Costly.apply(self.first(x), self.place))


def gradients(net):
    return torch.cat([parameter.grad.reshape(-1) for parameter in net.parameters()]).cpu()


@pytest.mark.parametrize("place", ["forward", "backward"])
def test_a_window_that_runs_out_of_memory_goes_on_with_smaller_microbatches(place, room, computes, caplog):
    caplog.set_level(logging.INFO, logger="brim")
    net = Net(place).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    acc = brim.Accumulator(net, optimizer, accumulation=1)
    batch = torch.randn(32, WIDTH).cuda()
    room(torch.cuda.memory_reserved() + 10 * SAMPLE_BYTES)
    sizes, found = [], []
    optimizer.register_step_pre_hook(lambda *_: found.append(gradients(net)))

    def loss_fn(part):
        sizes.append(len(part))
        return net(part).square().sum()

    assert acc.step(batch, loss_fn)
    held_bytes = torch.cuda.memory_allocated()
    assert acc.step(batch, loss_fn)
    assert sizes == [32, 16, 8, 8, 8, 8, 8, 8, 8, 8]
    assert (acc.num_updates, acc.items) == (2, 32.0)
    assert "accumulation=4" in acc.advice
    assert "out of memory with microbatches of 32; going on with 16" in caplog.text
    assert torch.cuda.memory_allocated() == held_bytes, "a second window leaves no more behind than the first"
    assert len(found[0]) == sum(parameter.numel() for parameter in net.parameters())
    if computes:
        assert net.calls == 8, "a window that is begun again starts from the buffers that it began with"
        net.zero_grad()
        net.place = None
        (net(batch).square().sum() / 32).backward()
        torch.testing.assert_close(found[0], gradients(net), rtol=1e-4, atol=1e-6)


def test_where_not_even_one_sample_fits_the_error_says_so_and_nothing_was_updated(room):
    net = Net("forward").cuda()
    acc = brim.Accumulator(net, torch.optim.SGD(net.parameters(), lr=0.1), accumulation=1)
    room(torch.cuda.memory_reserved() + SAMPLE_BYTES // 2)
    batch = torch.ones(4, WIDTH).cuda()
    with pytest.raises(OutOfMemoryError, match="out of memory with microbatches of 1, and that is the end"):
        acc.step(batch, lambda part: net(part).sum())
    assert acc.num_updates == 0
    room(64 * SAMPLE_BYTES)
    assert acc.step(batch, lambda part: net(part).sum()), "it goes on once there is room"


def test_an_allocator_that_keeps_trying_again_makes_microbatches_smaller(room, caplog):
    caplog.set_level(logging.INFO, logger="brim")
    net = Net(None).cuda()
    acc = brim.Accumulator(net, torch.optim.SGD(net.parameters(), lr=0.1), accumulation=1)
    room(torch.cuda.memory_reserved() + 10 * SAMPLE_BYTES)

    batch = torch.ones(8, WIDTH).cuda()
    for num_taken in (5, 6, 7, 8):  # more each time, which does not fit beside what is cached of the last

        def loss_fn(part, num_taken=num_taken):
            torch.empty(num_taken * SAMPLE_BYTES, dtype=torch.uint8, device="cuda")
            return net(part).sum()

        acc.step(batch, loss_fn)
    assert "the allocator had to try again in 3 windows in a row with microbatches of 8" in caplog.text
    assert "accumulation=2" in acc.advice


def test_a_function_of_a_batch_goes_on_in_parts(room, computes):
    parts = []

    @brim.recover
    def embed(batch, *, scale):
        parts.append(len(batch))
        take_room(batch, True)
        return batch * scale, batch.sum(1)

    batch = torch.arange(12.0 * WIDTH).reshape(12, WIDTH).cuda()
    room(torch.cuda.memory_reserved() + 8 * SAMPLE_BYTES)
    with torch.inference_mode():
        scaled, sums = embed(batch, scale=2)
    assert parts == [12, 6, 6]
    assert (scaled.shape, sums.shape, embed.microbatch) == ((12, WIDTH), (12,), 6)
    assert str(scaled.device) == "cuda:0"
    if computes:
        assert torch.equal(scaled, batch * 2)


def test_random_numbers_of_the_device_are_those_of_a_run_without_a_failure(room):
    """The generator's state lies on the host, so a phantom shows it as a card does."""
    torch.cuda.manual_seed(7)
    draws = []

    @brim.recover(microbatch=8)
    def draw(batch):
        torch.rand(len(batch), device="cuda")
        draws.append(torch.cuda.get_rng_state())
        take_room(batch, len(draws) == 1)
        return batch

    room(torch.cuda.memory_reserved() + 2 * SAMPLE_BYTES)
    draw(torch.ones(4, 1).cuda())
    assert len(draws) == 3, "of four samples, and of two and two"
    torch.cuda.manual_seed(7)
    for state in draws[1:]:
        torch.rand(2, device="cuda")
        assert torch.equal(state, torch.cuda.get_rng_state())
