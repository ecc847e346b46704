"""Gradients into their mean, also where there is no memory to bring them together in."""

import pytest
import torch
import torch.distributed as dist

from brim.errors import OutOfMemoryError
from brim.training import averaging


@pytest.fixture
def average():
    """Return the mean over the only rank of a real group, which is what was there before."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield lambda parameters: averaging.average(parameters, group=dist.group.WORLD, device=torch.device("cpu"))
    dist.destroy_process_group()


@pytest.mark.parametrize("is_short", [False, True])
def test_the_mean_is_the_same_with_and_without_room_for_it(average, is_short, monkeypatch):
    shapes = [(3, 4), (), (2, 3, 4, 5), (7,)]
    parameters = [torch.zeros(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, dtype=torch.float64)
    parameters[2].grad = parameters[2].grad.to(memory_format=torch.channels_last)
    parameters.append(torch.zeros(2, requires_grad=True))  # without a gradient anywhere
    before = [None if parameter.grad is None else parameter.grad.clone() for parameter in parameters]
    if is_short:
        monkeypatch.setattr(averaging, "_room_for", lambda parameters: None)
    average(parameters)
    for parameter, gradient in zip(parameters, before, strict=True):
        assert (parameter.grad is None) if gradient is None else torch.equal(parameter.grad, gradient)


def test_room_that_is_not_there_is_no_error():
    no_machine_has_as_much = torch.empty(1).expand(2**48)
    assert averaging._room_for([no_machine_has_as_much]) is None
    assert averaging._room_for([torch.empty(3)])[torch.device("cpu")].numel() == 12


def test_gradients_that_a_rank_lacks_and_cannot_hold_are_an_error_on_all(average, monkeypatch):
    flags = iter([[True, True, False], [True]])  # has, lacks and no rank short; then: a rank got no zeros
    monkeypatch.setattr(averaging, "_any_rank", lambda *_: next(flags))
    with pytest.raises(OutOfMemoryError, match="no memory for the gradients of parameters that only other ranks used"):
        average([torch.zeros(2, requires_grad=True)])
