"""Random numbers of the host in a trace: the same in each, so that traces of several sizes tell of the same job."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# What may be drawn in place of what was: enough that a choice between two is seen with 7 in 8.
OTHER_SEEDS = (1, 2, 3)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let what is drawn in the block depend on a seed alone, and what is drawn after it on what was before."""
    numpy = sys.modules.get("numpy")
    python_state, torch_state = random.getstate(), torch.default_generator.get_state()
    numpy_state: Any = None if numpy is None else numpy.random.get_state()
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if numpy is not None:
        numpy.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(python_state)
        torch.default_generator.set_state(torch_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)


class Draws:
    """Sees whether random numbers were drawn since it was made."""

    def __init__(self) -> None:
        self._python, self._torch = _states()

    def are_made(self, *, are_asked: bool) -> bool:
        """Return whether a number was drawn that may decide what runs.

        Args:
            are_asked: Whether values of tensors were asked for; what torch draws decides nothing else.
        """
        python, torch_state = _states()
        return python != self._python or (are_asked and torch_state != self._torch)


def _states() -> tuple[Any, bytes]:
    numpy = sys.modules.get("numpy")
    drawn: Any = None
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        drawn = (name, keys.tobytes(), *rest)
    # Its bytes, read outside of all modes: in a trace they would be fake.
    with torch.utils._python_dispatch._disable_current_modes():
        torch_state = torch.default_generator.get_state().numpy().tobytes()
    return (random.getstate(), drawn), torch_state
