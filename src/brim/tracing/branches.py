"""Branches on values that may go either way: each way is traced, and the one that takes most is answered for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
from enum import Enum
from types import CodeType, FrameType
from typing import TypeVar

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from brim.errors import TraceError
from brim.tracing.questions import MOST_ANSWERS, EndlessLoopError, line_at

# How many branches are followed each way: eight traces at most, and four in which they go one way after the other.
MOST_BRANCHES = 3
# How often branches are taken in one trace, and for each sample of it, before a loop is taken for endless: as often as
# tests are answered whose worst case is plain, and for a few hundred of what a sample has.
MOST_TAKEN_EACH = 1024
_NUMBER_OF = torch.ops.aten._local_scalar_dense.default


class Way(Enum):
    """When a branch goes the way of a test that holds."""

    NEVER = "never"
    ALWAYS = "always"
    FIRST = "at the first of each step"
    NOT_FIRST = "but for the first of each step"
    FIRST_STEP = "in the first step"
    LATER_STEPS = "in all others"

    def holds(self, *, is_first: bool, in_first_step: bool) -> bool:
        """Return whether the test holds now."""
        return {
            Way.NEVER: False,
            Way.ALWAYS: True,
            Way.FIRST: is_first,
            Way.NOT_FIRST: not is_first,
            Way.FIRST_STEP: in_first_step,
            Way.LATER_STEPS: not in_first_step,
        }[self]


# Those in which a branch goes one way after the other: what one made may be held while the other runs.
_MIXED = (Way.FIRST, Way.NOT_FIRST, Way.FIRST_STEP, Way.LATER_STEPS)
# Which way each branch goes, in the order in which a trace comes to them.
Ways = tuple[Way, ...]
_Result = TypeVar("_Result")


class UnansweredError(DataDependentOutputException):
    """A branch on a value of which nobody said which way it goes."""


class OpenBranchError(TraceError):
    """A trace that came to such a branch."""


class DeadEndError(TraceError):
    """A way that no job goes to its end, or that is no job: the workload fails as in a run, or nothing grows."""


class Branches:
    """Takes the branches of one trace."""

    def __init__(self, ways: Ways, microbatch: int) -> None:
        self.ways = ways
        self._most_taken = MOST_ANSWERS + MOST_TAKEN_EACH * microbatch
        self._places: dict[tuple[CodeType, int], int] = {}
        self._lines: list[str] = []
        self._in_step: Counter[int] = Counter()
        self._num_taken = self._num_steps = 0

    @property
    def lines(self) -> tuple[str, ...]:
        """Where they stand."""
        return tuple(dict.fromkeys(self._lines))

    def begin_step(self) -> None:
        """Begin the next step."""
        self._num_steps += 1
        self._in_step.clear()

    def take(self, frame: FrameType) -> bool:
        """Return whether the test holds that a frame has come to.

        Raises:
            UnansweredError: It is one more than there are ways.
            EndlessLoopError: A loop that only this branch ends would never end.
        """
        place = (frame.f_code, frame.f_lasti)
        if place not in self._places:
            if len(self._places) == len(self.ways):
                raise UnansweredError(_NUMBER_OF)
            self._places[place] = len(self._places)
            self._lines.append(line_at(frame.f_code.co_filename, frame.f_lineno))
        self._num_taken += 1
        if self._num_taken > self._most_taken:
            raise EndlessLoopError(_NUMBER_OF)
        branch = self._places[place]
        self._in_step[branch] += 1
        return self.ways[branch].holds(is_first=self._in_step[branch] == 1, in_first_step=self._num_steps <= 1)


def each_way(run: Callable[[Ways], _Result], memory_of: Callable[[_Result], Hashable]) -> list[_Result]:
    """Return what a run gives for every way that it can go, of those that need the same memory one.

    Where they do not, or one is a dead end, branches also go one way after the other.

    Args:
        run: Raises an `OpenBranchError` where it comes to a branch beyond the ways it is given.
        memory_of: Returns what is to be the same for two results to need the same memory.

    Raises:
        TraceError: A way cannot be traced, there are too many branches, or all ways are dead ends.
    """
    results: dict[Hashable, _Result] = {}
    failure: TraceError | None = None
    to_run: list[Ways] = [()]
    while to_run:
        ways = to_run.pop()
        try:
            result = run(ways)
            results.setdefault(memory_of(result), result)
        except DeadEndError as error:
            failure = error
        except OpenBranchError:
            if len(ways) == MOST_BRANCHES:
                raise
            to_run += [(*ways, Way.NEVER), (*ways, Way.ALWAYS)]
    if failure is not None and not results:
        raise failure
    if len(results) > 1 or failure is not None:
        for way in _MIXED:
            with suppress(DeadEndError):
                result = run((way,) * MOST_BRANCHES)
                results.setdefault(memory_of(result), result)
    return list(results.values())
