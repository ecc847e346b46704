"""What cuDNN takes for itself, as far as that is known.

torch lets cuDNN's heuristics choose the algorithm of every convolution and sets no cap on its workspace. One choice is
known from both sides, from memory that was measured and from cuDNN itself: the gradient of the weights of a 1 × 1
convolution as one matrix product for every sample, all of which are kept until they are summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from brim.tracing.record import Workspace

_CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default
# The GPUs whose heuristics choose it where the constants below say so: the consumer cards of the Ampere generation.
_CAPABILITY = (8, 6)
# The channels, inputs and outputs, for which it is chosen. Source: for the first, cuDNN 9.10 itself, asked by the
# description of such a card (`benchmarks/cudnn_choices.py`); for the second, five runs of MobileNetV2 and MnasNet on an
# RTX 3060 (`benchmarks/data/xmem-runs.csv`, with 8.9 or 9.1), which need just this more than runs of larger batches do.
_CHANNELS = ((range(400, 593), range(64, 161)), (range(320, 321), range(1280, 1281)))
# The most terms that a weight's gradient has in all, samples times pixels, where it is chosen. Source: both; cuDNN 9.10
# takes it for 3,332 and not for 3,339, the runs need it for 2,907 and not for 3,393.
MOST_TERMS = 3_332
_FLOAT32_BYTES = 4


def is_known(capability: tuple[int, int] | None) -> bool:
    """Return whether anything is known of what cuDNN takes on a GPU."""
    return capability == _CAPABILITY


def workspace_of(
    func: Any, args: Sequence[Any], *, microbatch: int, capability: tuple[int, int] | None
) -> Workspace | None:
    """Return what cuDNN takes for an operation; None where nothing is known of it."""
    if func is not _CONVOLUTION_BACKWARD or not is_known(capability):
        return None
    images, weight, stride, groups, wanted = args[1], args[2], args[4], args[9], args[10]
    num_outputs, num_inputs, *kernel = weight.shape
    is_plain = images.dtype is torch.float32 and images.is_contiguous() and groups == 1 and wanted[1]
    is_single = set(kernel) == {1} and set(stride) == {1} and images.dim() == 4
    if not (is_plain and is_single and any(num_inputs in i and num_outputs in o for i, o in _CHANNELS)):
        return None
    num_rows, num_pixels = images.shape[0], images.shape[2] * images.shape[3]
    most_rows = MOST_TERMS // max(num_pixels, 1)
    return Workspace(
        bytes_per_sample=num_rows * num_inputs * num_outputs * _FLOAT32_BYTES // max(microbatch, 1),
        most_samples=most_rows * microbatch // max(num_rows, 1),
    )
