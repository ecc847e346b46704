import torch
from torch import nn

from brim.tracing.fake import fake_tensors


def test_a_tensor_whose_values_are_known_keeps_the_type_it_was_given():
    with fake_tensors():
        norm = nn.LayerNorm(8)
        norm.to(torch.bfloat16)
        norm.to("cpu")
        assert {parameter.dtype for parameter in norm.parameters()} == {torch.bfloat16}
        assert norm(torch.zeros(2, 8, dtype=torch.bfloat16)).dtype is torch.bfloat16
