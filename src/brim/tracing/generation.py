"""transformers' generation on fake tensors: it asks which texts have ended, and in the worst case none has.

Beam search asks the other way round, whether any goes on, and at last how long the longest became.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

_CRITERIA = "transformers.generation.stopping_criteria"
_UTILS = "transformers.generation.utils"
_BEAM_SEARCH = "_beam_search"
_BEAMS_GO_ON = "_beam_search_has_unfinished_sequences"
_TORCH = str(Path(torch.__file__).parent)
_BRIM = str(Path(__file__).parent)


class Generation:
    """Answers the questions of transformers' generation: no text has ended until the longest length is reached."""

    def __init__(self) -> None:
        self._has_ended = False
        self._longest: int | None = None

    def answer(self, tensor: torch.Tensor) -> bool | int | None:
        """Return the answer to a question about a tensor's value; None where somebody else asks, or for a number."""
        asking = _asking_function()
        if tensor.dtype is torch.bool:
            return self._has_ended if asking is not None else None
        # Beam search cuts what it made for the longest text to the length that was reached: all of it.
        return self._longest if asking == _BEAM_SEARCH and not tensor.is_floating_point() else None

    def goes_on(self) -> bool:
        """Return whether any beam goes on."""
        return not self._has_ended

    def stop_at_the_longest(self, criteria: Any, tokens: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """Return for every text whether it has ended, by its length alone."""
        self._longest = longest = criteria.max_length
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

    def beams_go_on(*_: Any) -> bool:
        return generation.goes_on()

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(module.StoppingCriteriaList, "__call__", call))
        mixin = getattr(sys.modules.get(_UTILS), "GenerationMixin", None)
        if hasattr(mixin, _BEAMS_GO_ON):
            stack.enter_context(mock.patch.object(mixin, _BEAMS_GO_ON, staticmethod(beams_go_on)))
        yield generation


def _asking_function() -> str | None:
    """Return the innermost caller that is neither torch nor brim where it belongs to transformers' generation."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_TORCH, _BRIM, "<")):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or not str(frame.f_globals.get("__name__", "")).startswith("transformers.generation"):
        return None
    return frame.f_code.co_name
