"""The short ways to a fake result agree with fake tensors' own."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from brim.tracing.fake import fake_tensors
from brim.tracing.ledger import Ledger
from brim.tracing.recorder import Recorder
from brim.tracing.shortcuts import Shortcuts

CHANNELS_LAST = torch.channels_last


def _convolve(images_layout, weight_layout, *, size=(2, 8, 9, 11), weight=(12, 4, 3, 3), **settings):
    def run():
        images = torch.empty(size, requires_grad=True).contiguous(memory_format=images_layout)
        kernel = torch.empty(weight, requires_grad=True).contiguous(memory_format=weight_layout)
        bias = torch.empty(weight[0], requires_grad=True)
        images.retain_grad(), kernel.retain_grad()
        result = F.conv2d(images, kernel, bias, **settings)
        result.sum().backward()
        return result, images.grad, kernel.grad, bias.grad

    return run


def _broadcast():
    wide = torch.empty(2, 8, 6, 6).contiguous(memory_format=CHANNELS_LAST)
    narrow, half = torch.empty(8, 1, 1), torch.empty(2, 8, 6, 6, dtype=torch.float16)
    return wide * narrow, wide + half, half / 3, wide - half.transpose(2, 3), half * narrow[0, 0, 0]


def _repeat():
    wide, row, column = torch.empty(2, 8, 6), torch.empty(6), torch.empty(8, 1)
    ones = torch.empty(1, 1, 1, 6), torch.empty(()), torch.empty(2, 8, 6).transpose(0, 1)
    return *(wide * row, row - wide, wide + column, column / row), *(wide * other for other in ones[:2]), ones[2] + row


def _reduce():
    wide = torch.empty(2, 8, 6, dtype=torch.float16)
    images = torch.empty(2, 8, 6, 6).contiguous(memory_format=CHANNELS_LAST)
    sums = [wide.sum(dim, keepdim=keep) for dim in (0, -1, (0, 2), (0, 1, 2)) for keep in (False, True)]
    return *sums, wide.sum((), dtype=torch.float32), images.sum((0, 2)), images.sum(1, keepdim=True), wide.long().sum(0)


def _in_place():
    values, other = torch.empty(4, 6), torch.empty(6)
    whole = torch.empty(4, 6, dtype=torch.long)
    return (
        values.mul_(2).add_(other).clamp_(0, 1),
        values.copy_(other),
        values.lerp_(values, 0.5),
        whole.add_(1).mul_(whole),
    )


JOBS = {
    "repeat": _repeat,
    "reduce": _reduce,
    "in place": _in_place,
    "strided": _convolve(torch.contiguous_format, torch.contiguous_format, groups=2, stride=2, padding=(1, 2)),
    "channels last": _convolve(CHANNELS_LAST, CHANNELS_LAST, groups=2, dilation=2),
    "one channels last": _convolve(torch.contiguous_format, CHANNELS_LAST, groups=2),
    "pointwise": _convolve(CHANNELS_LAST, torch.contiguous_format, weight=(12, 8, 1, 1)),
    "padding by name": _convolve(torch.contiguous_format, torch.contiguous_format, groups=2, padding="valid"),
    "the same size": _convolve(torch.contiguous_format, torch.contiguous_format, groups=2, padding="same"),
    "broadcast": _broadcast,
    "empty": lambda: (torch.empty(3, 4, dtype=torch.float16), torch.empty(2, 3, 4, 5, memory_format=CHANNELS_LAST)),
}


def _described(tensors):
    return [
        (tuple(each.shape), each.stride(), each.dtype, each.device, each.untyped_storage().nbytes()) for each in tensors
    ]


@pytest.mark.parametrize("name", JOBS)
def test_a_shortcut_gives_what_fake_tensors_give(name):
    with FakeTensorMode():
        expected = _described(JOBS[name]())
    with FakeTensorMode() as mode, Recorder(Ledger(), Shortcuts(mode)):
        assert _described(JOBS[name]()) == expected


def _experts(dtype):
    """The products of a mixture of experts: of tokens in groups with each group's weights, and their gradients."""
    tokens, weights, flat = (
        torch.ones(8, 16, dtype=dtype),
        torch.ones(4, 16, 32, dtype=dtype),
        torch.ones(8, 32, dtype=dtype),
    )
    offsets = torch.tensor([2, 4, 6, 8], dtype=torch.int32)
    return (
        F.grouped_mm(tokens, weights, offs=offsets),
        F.grouped_mm(flat, weights.transpose(-2, -1), offs=offsets),
        F.grouped_mm(tokens.t(), flat, offs=offsets),
        F.grouped_mm(weights, weights.transpose(-2, -1)),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_in_groups_have_the_shapes_of_real_ones(dtype):
    expected = [(tuple(each.shape), each.dtype) for each in _experts(dtype)]
    with FakeTensorMode() as mode, Recorder(Ledger(), Shortcuts(mode)):
        assert [(tuple(each.shape), each.dtype) for each in _experts(dtype)] == expected


def test_a_convolution_that_does_not_match_fails_as_it_does_without():
    with FakeTensorMode() as mode, Recorder(Ledger(), Shortcuts(mode)):
        images, weight = torch.empty(2, 3, 8, 8), torch.empty(4, 5, 3, 3)
        with pytest.raises(RuntimeError, match="channels"):
            F.conv2d(images, weight)


def test_a_tensor_on_the_meta_device_stays_there():
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, Recorder(Ledger(), Shortcuts(mode)):
        assert torch.empty(2, device="meta").device.type == "meta"


MISTAKES = {
    "in place": lambda: torch.empty(3).add_(torch.empty(2, 3)),
    "whole numbers": lambda: torch.ones(3, dtype=torch.long).div_(torch.ones(3)),
    "lengths": lambda: torch.empty(3, 4) * torch.empty(3),
    "features": lambda: F.linear(torch.empty(3, 65), torch.empty(10, 64), torch.empty(10)),
    "features without a bias": lambda: F.linear(torch.empty(3, 65), torch.empty(10, 64)),
    "a bias": lambda: F.linear(torch.empty(3, 64), torch.empty(10, 64), torch.empty(9)),
    "types": lambda: F.linear(torch.empty(3, 64, dtype=torch.float64), torch.empty(10, 64), torch.empty(10)),
    "types without a bias": lambda: F.linear(torch.empty(3, 64, dtype=torch.float64), torch.empty(10, 64)),
    "a norm's features": lambda: F.layer_norm(torch.empty(3, 65), (64,), torch.empty(64), torch.empty(64)),
    "a norm's weight": lambda: F.layer_norm(torch.empty(3, 64), (64,), torch.empty(63), torch.empty(64)),
    "a convolution's bias": lambda: F.conv2d(torch.empty(1, 3, 8, 8), torch.empty(4, 3, 3, 3), torch.empty(5)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_torch_refuses_is_refused_on_fake_tensors_too(name):
    with pytest.raises(RuntimeError):
        MISTAKES[name]()
    with FakeTensorMode() as mode, Recorder(Ledger(), Shortcuts(mode)), pytest.raises(RuntimeError):
        MISTAKES[name]()


def test_what_counts_keeps_its_value():
    with fake_tensors() as mode, Recorder(Ledger(), Shortcuts(mode)):
        steps, seen = torch.tensor(0.0), torch.zeros((), dtype=torch.long)
        alias = steps.detach()
        steps += 1
        seen.add_(3)
        seen.zero_().add_(2)
        assert (steps.item(), alias.item(), seen.item()) == (1.0, 1.0, 2)
