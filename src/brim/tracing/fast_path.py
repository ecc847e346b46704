"""The fast path that torch's own transformer layers take in evaluation, with what its CUDA kernels make of memory.

Source: `transformer_encoder_layer_forward` in torch's aten/src/ATen/native/transformers/transformer.cpp, and
`native_multi_head_attention_cuda` in its cuda/attention.cu.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

# Heads of other widths are attended to by parts.
_FUSED_MULTIPLE = 8
_PLAIN = (torch.Tensor, nn.Parameter, FakeTensor)


@contextmanager
def taken_as_without_modes() -> Iterator[None]:
    """Let layers take the fast path where they would if nobody watched: a trace's own modes are no reason not to.

    Batches of texts stay padded: how much of them is padding no trace knows, and in the worst case none is.
    """
    with (
        mock.patch.object(torch.overrides, "has_torch_function", _have_functions_of_their_own),
        mock.patch.object(torch, "_nested_tensor_from_mask_left_aligned", _is_not_aligned),
    ):
        yield


def functions(attend: Callable[..., torch.Tensor]) -> dict[Any, Callable[..., Any]]:
    """Return what runs instead of the operators of the fast path.

    Args:
        attend: Attends with the kernel that CUDA would pick.
    """

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        embed_dim: int,
        num_heads: int,
        weight: torch.Tensor,
        bias: torch.Tensor,
        out_weight: torch.Tensor,
        out_bias: torch.Tensor,
        mask: torch.Tensor | None = None,
        need_weights: bool = True,
        average_attn_weights: bool = True,
        mask_type: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        is_plain = query is key and key is value and mask is None
        if is_plain and (embed_dim // num_heads) % _FUSED_MULTIPLE == 0 and not need_weights:
            heads = [_heads(part, num_heads) for part in F.linear(query, weight, bias).chunk(3, -1)]
            attended = attend(*heads).transpose(1, 2).reshape(query.shape)
            return F.linear(attended, out_weight, out_bias), None
        # What is projected is copied with the heads apart, and the first third is written over in the end.
        projected = F.linear(query, weight)
        projected = projected.clone()
        heads = [_heads(part, num_heads) for part in projected.chunk(3, -1)]
        scores = (heads[0] @ heads[1].transpose(-1, -2)).softmax(-1)
        if not need_weights:
            del scores
        result = F.linear(projected.chunk(3, -1)[0], out_weight, out_bias)
        if not need_weights:
            return result, None
        return result, scores.sum(1) if average_attn_weights else scores

    def encoder_layer(
        source: torch.Tensor,
        embed_dim: int,
        num_heads: int,
        weight: torch.Tensor,
        bias: torch.Tensor,
        out_weight: torch.Tensor,
        out_bias: torch.Tensor,
        uses_gelu: bool,
        norm_first: bool,
        eps: float,
        norm_weight_1: torch.Tensor,
        norm_bias_1: torch.Tensor,
        norm_weight_2: torch.Tensor,
        norm_bias_2: torch.Tensor,
        up_weight: torch.Tensor,
        up_bias: torch.Tensor,
        down_weight: torch.Tensor,
        down_bias: torch.Tensor,
        mask: torch.Tensor | None = None,
        mask_type: int | None = None,
    ) -> torch.Tensor:
        def norm(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return F.layer_norm(inputs, [embed_dim], weight, bias, eps)

        rows = norm(source, norm_weight_1, norm_bias_1) if norm_first else source
        projections = weight, bias, out_weight, out_bias
        rows = attention(rows, rows, rows, embed_dim, num_heads, *projections, mask, need_weights=False)[0].add_(source)
        if not norm_first:
            rows = norm(rows, norm_weight_1, norm_bias_1)
        before = rows
        if norm_first:
            rows = norm(rows, norm_weight_2, norm_bias_2)
        rows = F.linear(rows, up_weight, up_bias)  # and its activation, in place
        rows = F.linear(rows, down_weight, down_bias).add_(before)
        return rows if norm_first else norm(rows, norm_weight_2, norm_bias_2)

    return {
        torch._transformer_encoder_layer_fwd: encoder_layer,
        torch._native_multi_head_attention: attention,
    }


def _heads(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    heads: torch.Tensor = rows.unflatten(-1, (num_heads, -1))
    return heads.transpose(1, 2)


def _have_functions_of_their_own(tensors: Iterable[Any]) -> bool:
    return any(isinstance(each, torch.Tensor) and type(each) not in _PLAIN for each in tensors)


def _is_not_aligned(*_: Any) -> bool:
    return False
