import copy

import torch
from torch import nn

import brim
from brim.cases import Case
from brim.tracing import trace
from brim.tracing.fake import fake_tensors


def test_a_tensor_whose_values_are_known_keeps_the_type_it_was_given():
    with fake_tensors():
        norm = nn.LayerNorm(8)
        norm.to(torch.bfloat16)
        norm.to("cpu")
        assert {parameter.dtype for parameter in norm.parameters()} == {torch.bfloat16}
        assert norm(torch.zeros(2, 8, dtype=torch.bfloat16)).dtype is torch.bfloat16


class Drawn(brim.Workload):
    def build(self):
        self.model = nn.Linear(256, 256, bias=False).to(self.device)
        nn.init.trunc_normal_(self.model.weight)

    def batch(self, size):
        return torch.ones(size, 256, device=self.device)

    def step(self, batch):
        self.model(batch).sum().backward()
        self.model.zero_grad()


class Inspected(Drawn):
    """Asks for what it made while it is built, as nobody can answer on fake tensors."""

    def build(self):
        super().build()
        token = nn.Parameter(torch.zeros(1, 1, 256))
        nn.init.normal_(token)
        assert bool((token == token).all())
        assert isinstance(self.model.weight.sum().item() > 0, bool)
        self.token = token.to(self.device)


def test_values_drawn_within_bounds_need_no_real_model(monkeypatch):
    monkeypatch.setattr("brim.tracing.traces._build_for_real", None)
    assert trace(Drawn, Case(), 4, capability=(8, 6)).record.breakdown()["parameters"] == 256 * 256 * 4


def test_a_model_that_is_built_for_real_is_real_to_its_small_tensors():
    assert trace(Inspected, Case(), 4, capability=(8, 6)).record.breakdown()["parameters"] >= 256 * 256 * 4


def test_a_layer_that_was_only_copied_is_not_counted():
    class Copies(brim.Workload):
        def build(self):
            layer = nn.Linear(256, 256, bias=False)
            self.model = nn.Sequential(*(copy.deepcopy(layer) for _ in range(2))).to(self.device)

        def batch(self, size):
            return torch.ones(size, 256, device=self.device)

        def step(self, batch):
            self.model(batch).sum().backward()
            self.model.zero_grad()

    held = trace(Copies, Case(), 4).record.breakdown()
    assert held["parameters"] == 2 * 256 * 256 * 4


def test_a_copied_layer_takes_what_a_layer_of_its_own_takes():
    class Layers(brim.Workload):
        def layers(self):
            return [nn.Linear(256, 256, bias=False) for _ in range(2)]

        def build(self):
            self.model = nn.Sequential(*self.layers())

        def batch(self, size):
            return torch.ones(size, 256)

        def step(self, batch):
            self.model(batch).sum().backward()
            self.model.zero_grad()

    class Copies(Layers):
        def layers(self):
            layer = nn.Linear(256, 256, bias=False)
            return [layer, copy.deepcopy(layer)]

    assert trace(Copies, Case(), 4).peak_bytes == trace(Layers, Case(), 4).peak_bytes


def test_a_copy_of_a_model_is_made_of_fake_tensors_and_counts(monkeypatch):
    class Averages(Drawn):
        def build(self):
            super().build()
            self.average = torch.optim.swa_utils.AveragedModel(self.model)

        def step(self, batch):
            super().step(batch)
            self.average.update_parameters(self.model)

    monkeypatch.setattr("brim.tracing.traces._build_for_real", None)
    traced = trace(Averages, Case(), 4, capability=(8, 6))
    assert traced.record.breakdown()["parameters"] == 2 * 256 * 256 * 4


def test_a_copy_keeps_what_the_original_has():
    with fake_tensors():
        original = nn.Linear(8, 8)
        original.weight.requires_grad_(False)
        original.bias.grad = torch.zeros(8)
        tied = {"one": original.weight, "other": original.weight, "plain": torch.arange(4)}
        copied, tied = copy.deepcopy((original, tied))
        assert isinstance(copied.weight, nn.Parameter)
        assert not copied.weight.requires_grad
        assert copied.bias.requires_grad
        assert copied.bias.grad is not original.bias.grad
        assert tied["one"] is tied["other"] is copied.weight
        assert tied["plain"].sum().item() == 6
