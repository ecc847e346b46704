"""Attention as CUDA runs it: which kernel is picked, and what its backward pass takes for a moment.

Sources, all in torch: `select_sdp_backend` in aten/src/ATen/native/transformers/cuda/sdp_utils.cpp for the choice,
`mha_bwd` in .../cuda/flash_attn/flash_api.cpp and `_efficient_attention_backward` in .../cuda/attention_backward.cu for
what the two fused kernels take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F

from brim.tracing.kernels import FLOAT32_BYTES, round_up

_aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
# Flash attention needs Ampere or newer, and so do bfloat16 values in memory-efficient attention.
_FLASH_CAPABILITY = (8, 0)
# The widest head that it takes; narrower ones are padded to a multiple.
_FLASH_HEAD = 256
_FLASH_MULTIPLE = 8
# What memory-efficient attention wants heads to be a multiple of, by the bytes of a value: 128 bits.
_EFFICIENT_MULTIPLES = {2: 8, 4: 4}
# To which multiples flash attention rounds queries and heads of its accumulator up.
_FLASH_QUERIES = 128
_FLASH_COLUMNS = 32
_FLASH_WIDE_COLUMNS = 192  # wider than this, a head has 256
# The tiles in which memory-efficient attention adds up the queries' gradient. Larger heads have larger ones.
_EFFICIENT_TILE = 64


# Whether the GPU of the trace that runs now has fused kernels at all.
_is_fused = ContextVar("is_fused", default=True)


@contextmanager
def attending(*, fused: bool) -> Iterator[None]:
    """Let attention in the block run in fused kernels, or always by parts."""
    before = _is_fused.set(fused)
    try:
        yield
    finally:
        _is_fused.reset(before)


def has_flash_attention(capability: tuple[int, int]) -> bool:
    """Return whether a GPU has it: all else that a trace shows is the same on every generation."""
    return capability >= _FLASH_CAPABILITY


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    capability: tuple[int, int],
) -> torch.Tensor:
    """Attend with the kernel that CUDA would pick: flash, memory-efficient, or by parts."""
    is_grouped = enable_gqa and query.dim() == 4 and query.shape[1] != key.shape[1]
    is_half, head = query.dtype in _HALF, query.shape[-1]
    if not _is_fused.get():
        return _attend_by_parts(query, key, value, attn_mask, dropout_p, is_causal, scale, is_grouped)
    attended: torch.Tensor
    is_even = key.shape[-1] == value.shape[-1] == head
    # A causal mask of flash attention ends with the last key, that of torch begins with the first.
    is_square = not is_causal or query.shape[-2] == key.shape[-2]
    # Neither fused kernel repeats samples, nor heads without being told to.
    is_alike = query.dim() == 4 and query.shape[0] == key.shape[0] == value.shape[0]
    is_alike = is_alike and (is_grouped or query.shape[1] == key.shape[1] == value.shape[1])
    is_plain = is_alike and attn_mask is None and is_even and is_square
    if is_plain and is_half and head <= _FLASH_HEAD and has_flash_attention(capability):
        missing = -head % _FLASH_MULTIPLE
        if missing:
            scale = head**-0.5 if scale is None else scale
            query, key, value = (F.pad(tensor, (0, missing)) for tensor in (query, key, value))
        attended = _aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )[0]
        return attended[..., :head] if missing else attended
    multiple = _EFFICIENT_MULTIPLES.get(query.element_size())
    is_unserved = query.dtype is torch.bfloat16 and not has_flash_attention(capability)
    is_aligned = multiple is not None and head % multiple == 0 == value.shape[-1] % multiple
    if not is_alike or is_grouped or is_unserved or not is_aligned:
        return _attend_by_parts(query, key, value, attn_mask, dropout_p, is_causal, scale, is_grouped)
    bias = None
    if attn_mask is not None:
        bias = torch.zeros_like(attn_mask, dtype=query.dtype) if attn_mask.dtype == torch.bool else attn_mask
        bias = bias.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    needs_grad = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    attended = _aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, needs_grad, dropout_p, is_causal, scale=scale
    )[0]
    return attended


def _attend_by_parts(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    is_grouped: bool,
) -> torch.Tensor:
    """Attend as the kernel does that no fused one can replace: with the whole matrix of scores."""
    grouped = {"enable_gqa": True} if is_grouped else {}  # which torch 2.4 does not have
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):  # it has cast already
        attended: torch.Tensor = _aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, **grouped
        )[0]
    return attended


def backward_scratch(func: Any, args: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """Return what the backward pass of a fused kernel takes besides its results, in bytes: moment by moment."""
    if func is _aten._scaled_dot_product_flash_attention_backward.default:
        return (_flash_scratch(*args[1:4]),)
    if func is _aten._scaled_dot_product_efficient_attention_backward.default:
        return _efficient_scratch(args[1], args[3])
    return ()


def _flash_scratch(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[int, ...]:
    """Return the sums of the softmax, the queries' gradient in float32, and keys and values repeated for all heads."""
    num_samples, num_heads, num_queries, head = query.shape
    rows = num_samples * num_heads * round_up(num_queries, _FLASH_QUERIES)
    columns = round_up(head, _FLASH_COLUMNS) if head <= _FLASH_WIDE_COLUMNS else _FLASH_HEAD
    repeated = [] if key.shape[1] == num_heads else [each.nbytes // key.shape[1] * num_heads for each in (key, value)]
    return rows * FLOAT32_BYTES, rows * columns * FLOAT32_BYTES, *repeated


def _efficient_scratch(query: torch.Tensor, value: torch.Tensor) -> tuple[tuple[int, ...], ...]:
    """Return what the sums of the softmax take, where no kernel computes them, then they and the queries' gradient."""
    num_samples, num_heads, num_queries, head = query.shape
    sums_bytes = num_samples * num_heads * num_queries * FLOAT32_BYTES
    tiles = round_up(num_queries, _EFFICIENT_TILE) * round_up(head, _EFFICIENT_TILE)
    held = (sums_bytes, num_samples * num_heads * tiles * FLOAT32_BYTES)
    return (held,) if query.dtype in _HALF else ((sums_bytes * value.shape[-1],), held)
