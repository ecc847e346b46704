"""Random numbers of the host in a trace: the same in each, so that traces of several sizes tell of the same job."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

# What may be drawn in place of what was: of a choice between two, each is missed in the last step in one of 256 jobs.
OTHER_SEEDS = (1, 2, 3, 4, 5, 6, 7)


class Generators:
    """Counts the generators of random numbers that were made without a seed, and gives them one."""

    def __init__(self, seed: int) -> None:
        self.num_made = 0
        self._seed = seed

    def seed(self, _num_bits: int = 64) -> int:
        """Return the seed of a generator that has none, of however many bits."""
        self.num_made += 1
        return self._seed


@contextmanager
def seeded(seed: int) -> Iterator[Generators]:
    """Let what is drawn in the block depend on a seed alone, and what is drawn after it on what was before."""
    generators = Generators(seed)
    with _global_generators(seed), ExitStack() as stack:
        seed_python = random.Random.seed
        stack.enter_context(
            mock.patch.object(
                random.Random,
                "seed",
                lambda self, a=None, version=2: seed_python(self, generators.seed() if a is None else a, version),
            )
        )
        # Where numpy asks for a seed if it is given none, also for `default_rng()`.
        numpy = sys.modules.get("numpy.random.bit_generator")
        if hasattr(numpy, "randbits"):
            stack.enter_context(mock.patch.object(numpy, "randbits", generators.seed))
        yield generators


@contextmanager
def _global_generators(seed: int) -> Iterator[None]:
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
    """Sees whether random numbers were drawn since it was made, or may be, from generators of the workload's own."""

    def __init__(self, generators: Generators) -> None:
        self._generators = generators
        self._python, self._torch = _states()

    def are_made(self, *, are_asked: bool) -> bool:
        """Return whether a number was drawn that may decide what runs.

        Args:
            are_asked: Whether values of tensors were asked for; what torch draws decides nothing else.
        """
        python, torch_state = _states()
        if self._generators.num_made:
            return True
        return python != self._python or (are_asked and torch_state != self._torch)


def _states() -> tuple[Any, bytes]:
    numpy = sys.modules.get("numpy")
    drawn: Any = None
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        drawn = (name, keys.tobytes(), *rest)
    # Its bytes, read outside of all modes: in a trace they would be fake. NumPy may not be there.
    with torch.utils._python_dispatch._disable_current_modes(), torch._C.DisableTorchFunction():
        torch_state = bytes(torch.default_generator.get_state().tolist())
    return (random.getstate(), drawn), torch_state
