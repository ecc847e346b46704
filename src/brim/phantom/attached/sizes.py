"""Inside a job on phantoms: sizes that depend on values are found where these are known; else the largest is taken.

Where numbers that were never computed end a loop, it is ended here, with the line that asks for them.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from brim.phantom.attached.operations import Operations, Original
from brim.phantom.attached.values import Known, State, is_plain, is_small, on_host
from brim.probing.verdicts import line_of

_OWN, _TORCH = str(Path(__file__).parent), str(Path(torch.__file__).parent)
# So many truth values that were never computed are read without a step of an optimizer between: by then a loop waits
# for one of them. A generation reads one or two for each token.
MOST_READS = 50_000


class Sizes:
    """Answers what torch asks of values in order to know a size, or whether to go on."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._remark = ctypes.CDLL(None).brim_remark
        self._remark.argtypes, self._remark.restype = [ctypes.c_char_p, ctypes.c_char_p], None
        self._num_reads = 0

    def attach(self, operations: Operations) -> None:
        """See every operation whose result has a size that depends on values, and every value that is read."""
        operations.add("nonzero.default", self._nonzero)
        for name in ("_unique2", "unique_consecutive", "unique_dim"):
            operations.add(name, self._unique)
        operations.add("repeat_interleave.Tensor", self._repeat)
        operations.add("bincount.default", self._count)
        operations.add("_local_scalar_dense.default", self._read)
        operations.add_of("torchvision", "nms", self._keep_boxes)
        register_optimizer_step_post_hook(self._start_anew)

    def _nonzero(self, operation: Any, original: Original, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        if not (is_plain(tensor) and tensor.is_cuda):
            return original()
        if self._is_known(tensor):
            return self._on_device(operation(on_host(tensor)), tensor)
        self._say("selects by values that no kernel computed, so all elements are taken")
        # As torch lays it out: a column after the other.
        return torch.zeros((tensor.dim(), tensor.numel()), dtype=torch.int64, device=tensor.device).t()

    def _unique(self, operation: Any, original: Original, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        if not (is_plain(tensor) and tensor.is_cuda):
            return original()
        if self._is_known(tensor):
            found = operation(on_host(tensor), *args[1:], **kwargs)
            return tuple(self._on_device(each, tensor) for each in found)
        self._say("looks for values that differ among those that no kernel computed, so all are taken for different")
        # Of as many values that differ.
        found = operation(torch.arange(tensor.numel()).reshape(tensor.shape), *args[1:], **kwargs)
        return tuple(torch.empty_like(each, device=tensor.device) for each in found[:1]) + tuple(
            each.to(tensor.device) for each in found[1:]
        )

    def _keep_boxes(self, operation: Any, original: Original, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        boxes = args[0]
        if not boxes.is_cuda:
            return original()
        self._say("keeps the boxes that overlap little, which no kernel computed, so all are kept")
        return torch.arange(boxes.shape[0], device=boxes.device)

    def _repeat(self, operation: Any, original: Original, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        repeats = args[0]
        if not (is_plain(repeats) and repeats.is_cuda):
            return original()
        if self._is_known(repeats):
            return self._on_device(operation(on_host(repeats), **kwargs), repeats)
        size = kwargs.get("output_size")
        if size is None:
            self._say("repeats by values that no kernel computed, so each is taken once: pass output_size")
        return torch.zeros(repeats.numel() if size is None else size, dtype=torch.int64, device=repeats.device)

    def _count(self, operation: Any, original: Original, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        has_weights = len(args) > 1 and args[1] is not None
        if not (is_plain(tensor) and tensor.is_cuda) or has_weights or not self._is_known(tensor):
            return original()
        return self._on_device(operation(on_host(tensor), *args[1:], **kwargs), tensor)

    def _read(self, operation: Any, original: Original, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        if is_plain(tensor) and tensor.is_cuda and not tensor.dtype.is_floating_point:
            state = self._known.state(tensor)
            if state is not State.KNOWN and tensor.dtype is torch.bool:
                self._num_reads += 1
                self._check_rounds()
            elif state < State.KNOWN and not _is_asked_by_torch():
                number = original()
                self._say(f"reads a number that follows from what no kernel computed, so it is {number}")
                return number
        return original()

    def _check_rounds(self) -> None:
        if self._num_reads < MOST_READS:
            return
        line = line_of(RuntimeError()) or "a loop"
        told = (
            f"{line} waits for a value that no kernel computes: it was read {self._num_reads:,} times. Bound the loop, "
            "for example by max_new_tokens or a number of rounds"
        )
        self._remark(b"loop", told.encode())
        raise RuntimeError(f"{told}.")

    def _start_anew(self, *_: Any) -> None:
        self._num_reads = 0

    def _is_known(self, tensor: torch.Tensor) -> bool:
        return is_small(tensor) and self._known.state(tensor) is State.KNOWN

    def _on_device(self, found: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return found.to(like.device)

    def _say(self, what: str) -> None:
        line = line_of(RuntimeError())
        self._remark(b"remark", f"{line or 'the job'} {what}.".encode())


def _is_asked_by_torch() -> bool:
    """Return whether a module of torch's is what asks, as DDP does: it goes on whatever it reads."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_TORCH)
