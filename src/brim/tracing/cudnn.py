"""What cuDNN's search for the fastest algorithm does to cached memory, as far as torch decides it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

# Where the images are among the arguments; the weight comes next.
_INPUT_AT: dict[Callable[..., Any], int] = {
    torch.ops.aten.convolution.default: 0,
    torch.ops.aten.convolution_backward.default: 1,
}


class TriedConvolutions:
    """Convolutions whose algorithms were tried already.

    Under `torch.backends.cudnn.benchmark` torch lets cuDNN try all algorithms for a convolution that it meets for the
    first time, and then gives all cached memory back. What they are tried in is no more than what is free, so it is
    only this giving back that shows later on, in how memory is cut.
    Source: `emptyCache` in torch's aten/src/ATen/native/cudnn/Conv_v7.cpp and Conv_v8.cpp.
    """

    def __init__(self) -> None:
        self._tried: set[tuple[Any, ...]] = set()

    def is_new(self, func: Callable[..., Any], args: Sequence[Any]) -> bool:
        """Return whether cuDNN tries algorithms in this call, and remember it."""
        if (
            func not in _INPUT_AT
            or not torch.backends.cudnn.benchmark
            or _is_torchs_own(*_images_and_weight(func, args))
        ):
            return False
        key = (func, *(_described(argument) for argument in args))
        if key in self._tried:
            return False
        self._tried.add(key)
        return True


def _images_and_weight(func: Callable[..., Any], args: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    at = _INPUT_AT[func]
    return args[at], args[at + 1]


def _is_torchs_own(images: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether torch has a kernel of its own for this: for one channel at a time, unless channels come last.

    In half precision it takes cuDNN's for some shapes all the same, which are not told apart here.
    Source: `use_cudnn_depthwise` in torch's aten/src/ATen/native/Convolution.cpp.
    """
    is_depthwise = images.dim() == 4 and weight.shape[1] == 1 and images.shape[1] > 1
    return is_depthwise and not images.is_contiguous(memory_format=torch.channels_last)


def _described(argument: Any) -> Any:
    if isinstance(argument, torch.Tensor):
        return argument.dtype, tuple(argument.shape)
    return tuple(argument) if isinstance(argument, list) else argument
