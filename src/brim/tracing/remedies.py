"""What would make a job fit that does not: the cheapest change whose saving covers what is missing."""

from __future__ import annotations

import math
from collections.abc import Mapping

from brim.planning.footprint import EIGHT_BIT_BYTES, PRECISIONS
from brim.units import format_bytes

# Share of the activations that recomputing them in the backward pass saves; what stays are the inputs of the blocks.
# Source: 2·s·b·h bytes a layer against s·b·h·(34 + 5·a·s/h), at least 34 (Korthikanti et al., 2022).
_CHECKPOINTING = 1 - 2 / 34
# Share of Adam's state that 8 bits save.
_EIGHT_BIT = 1 - EIGHT_BIT_BYTES / PRECISIONS["fp32"].optimizer_bytes("adamw")
# Half the bytes of everything that is float32.
_HALF = 0.5


def remedy(held: Mapping[str, int], *, missing_bytes: int, cached_bytes: int) -> str:
    """Return the first change, from the cheapest on, that saves at least what is missing.

    Args:
        held: Bytes of every kind of memory at the peak of microbatch 1.
        missing_bytes: By how much the peak passes the device's memory.
        cached_bytes: What the allocator holds beyond its tensors.

    >>> remedy({"activations": 0, "optimizer": 8 * 2**30}, missing_bytes=5 * 2**30, cached_bytes=0)
    'an 8-bit optimizer would save about 6.00 GiB'
    """
    state = sum(held.get(kind, 0) for kind in ("parameters", "gradients", "optimizer"))
    tensors = sum(held.values())
    steps = (
        ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", cached_bytes),
        ("checkpointing", _CHECKPOINTING * held.get("activations", 0)),
        ("an 8-bit optimizer", _EIGHT_BIT * held.get("optimizer", 0)),
        ("bfloat16 weights and activations", _HALF * tensors),
    )
    for name, saved_bytes in steps:
        if saved_bytes >= missing_bytes:
            return f"{name} would save about {format_bytes(int(saved_bytes))}"
    if missing_bytes < state:
        num_ranks = math.ceil(state / (state - missing_bytes))
        return f"sharding weights, gradients and optimizer over {num_ranks} GPUs (FSDP) would make it fit"
    return "nothing short of a larger GPU or a smaller model would make it fit"
