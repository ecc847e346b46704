"""transformers' generation on fake tensors: it asks which texts have ended, and in the worst case none has."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

_CRITERIA = "transformers.generation.stopping_criteria"
_TORCH = str(Path(torch.__file__).parent)
_BRIM = str(Path(__file__).parent)


class Generation:
    """Answers the yes-or-no questions of transformers' generation: no, until the longest text is reached."""

    def __init__(self) -> None:
        self._has_ended = False

    def answer(self, tensor: torch.Tensor) -> bool | None:
        """Return the answer to a question about a tensor's value; None where somebody else asks, or for a number."""
        return self._has_ended if tensor.dtype is torch.bool and _is_asked_by_generation() else None

    def stop_at_the_longest(self, criteria: Any, tokens: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """Return for every text whether it has ended, by its length alone."""
        longest = criteria.max_length
        self._has_ended = longest is not None and tokens.shape[1] >= longest
        return torch.full((tokens.shape[0],), self._has_ended, device=tokens.device, dtype=torch.bool)


@contextmanager
def generation_to_the_end() -> Iterator[Generation]:
    """Let transformers' generation, where it has been imported, go on to its longest text in the block."""
    generation = Generation()
    module = sys.modules.get(_CRITERIA)
    if module is None:
        yield generation
        return

    def call(criteria: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        return generation.stop_at_the_longest(criteria, *args, **kwargs)

    with mock.patch.object(module.StoppingCriteriaList, "__call__", call):
        yield generation


def _is_asked_by_generation() -> bool:
    """Return whether the innermost caller that is neither torch nor brim belongs to transformers' generation."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_TORCH, _BRIM, "<")):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and str(frame.f_globals.get("__name__", "")).startswith("transformers.generation")
