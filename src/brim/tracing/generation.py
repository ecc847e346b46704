"""transformers' generation on fake tensors: it asks which texts have ended, and in the worst case none has.

Beam search asks the other way round, whether any goes on, and at last how long the longest became.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

if TYPE_CHECKING:
    from brim.tracing.ledger import Ledger

_CRITERIA = ("transformers.generation.stopping_criteria", "StoppingCriteriaList")
_MIXIN = ("transformers.generation.utils", "GenerationMixin")
# What `generate` is asked for besides the texts: something of every token, or a cache that goes on.
_MORE_THAN_TEXTS = ("return_dict_in_generate", "past_key_values", "streamer", "assistant_model")
_BEAM_SEARCH = "_beam_search"
_BEAMS_GO_ON = "_beam_search_has_unfinished_sequences"
_TORCH = str(Path(torch.__file__).parent)
_BRIM = str(Path(__file__).parent)


class Generation:
    """Answers the questions of transformers' generation: no text has ended until the longest length is reached.

    Where a ledger knows all tokens that follow, texts are said to have ended: it enters the rest, and the result is
    made as long as it would have been.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._has_ended = False
        self._longest: int | None = None
        self._is_cut = False

    def answer(self, tensor: torch.Tensor) -> bool | int | None:
        """Return the answer to a question about a tensor's value; None where somebody else asks, or for a number."""
        asking = _asking_function()
        if tensor.dtype is torch.bool:
            return self._has_ended if asking is not None else None
        # Beam search cuts what it made for the longest text to the length that was reached: all of it.
        return self._longest if asking == _BEAM_SEARCH and not tensor.is_floating_point() else None

    def goes_on(self, *_: Any) -> bool:
        """Return whether any beam goes on."""
        return not self._has_ended

    def stop_at_the_longest(self, criteria: Any, tokens: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """Return for every text whether it has ended, by its length alone."""
        self._longest = longest = criteria.max_length
        num_left = None if longest is None else longest - tokens.shape[1]
        self._has_ended = num_left is not None and num_left <= 0
        if self._ledger.end_token() and num_left is not None and num_left > 0:
            self._ledger.add_tokens(num_left)
            self._has_ended = self._is_cut = True
        return torch.full((tokens.shape[0],), self._has_ended, device=tokens.device, dtype=torch.bool)

    def run(self, generate: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        """Call `generate` of transformers; all tokens are traced where more than the texts is asked of it."""
        config = kwargs.get("generation_config") or model.generation_config
        settings = {**{name: getattr(config, name, None) for name in _MORE_THAN_TEXTS}, **kwargs}
        if not any(settings.get(name) for name in _MORE_THAN_TEXTS):
            self._ledger.begin_tokens()
        self._is_cut = False
        texts = generate(model, *args, **kwargs)
        return texts.new_empty(texts.shape[0], self._longest) if self._is_cut else texts


@contextmanager
def generation_to_the_end(ledger: Ledger) -> Iterator[Generation]:
    """Let transformers' generation, where it has been imported, go on to its longest text in the block."""
    generation = Generation(ledger)
    criteria, mixin = (_imported(*name) for name in (_CRITERIA, _MIXIN))
    if criteria is None or mixin is None:
        yield generation
        return

    # Functions, not methods of `generation`: what is patched is a class, whose instances come first.
    def stop(criteria: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        return generation.stop_at_the_longest(criteria, *args, **kwargs)

    generate = mixin.generate

    def run(model: Any, *args: Any, **kwargs: Any) -> Any:
        return generation.run(generate, model, *args, **kwargs)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(criteria, "__call__", stop))
        stack.enter_context(mock.patch.object(mixin, "generate", run))
        if hasattr(mixin, _BEAMS_GO_ON):
            stack.enter_context(mock.patch.object(mixin, _BEAMS_GO_ON, staticmethod(generation.goes_on)))
        yield generation


def _imported(module: str, name: str) -> Any:
    """Return what a module has, where that has been imported."""
    return getattr(sys.modules.get(module), name, None)


def _asking_function() -> str | None:
    """Return the innermost caller that is neither torch nor brim where it belongs to transformers' generation."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_TORCH, _BRIM, "<")):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None or not str(frame.f_globals.get("__name__", "")).startswith("transformers.generation"):
        return None
    return frame.f_code.co_name
