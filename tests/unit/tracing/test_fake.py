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
