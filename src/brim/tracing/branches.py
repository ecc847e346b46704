"""Branches on values that may go either way: each way is traced, and the one with which least fits is answered for."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeVar

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from brim.errors import TraceError
from brim.tracing.questions import MOST_ANSWERS, EndlessLoopError

# How many branches are followed each way: eight traces at most.
MOST_BRANCHES = 3
# How often branches are taken in one trace, and for each sample of it, before a loop is taken for endless: as often as
# tests are answered whose worst case is plain, and for a few hundred of what a sample has.
MOST_TAKEN_EACH = 1024
_NUMBER_OF = torch.ops.aten._local_scalar_dense.default

# Which way each branch goes, in the order in which a trace comes to them.
Ways = tuple[bool, ...]
_Result = TypeVar("_Result")


class UnansweredError(DataDependentOutputException):
    """A branch on a value of which nobody said which way it goes."""


class OpenBranchError(TraceError):
    """A trace that came to such a branch."""


class OwnFailureError(TraceError):
    """A workload that fails in a trace as it would in a run."""


class Branches:
    """Takes the branches of one trace; one that is taken again goes the same way."""

    def __init__(self, ways: Ways, microbatch: int) -> None:
        self.ways = ways
        self._most_taken = MOST_ANSWERS + MOST_TAKEN_EACH * microbatch
        self._places: dict[tuple[CodeType, int], int] = {}
        self._lines: list[str] = []
        self._num_taken = 0

    @property
    def lines(self) -> tuple[str, ...]:
        """Where they stand."""
        return tuple(dict.fromkeys(self._lines))

    def take(self, frame: FrameType) -> bool:
        """Return which way the branch goes that a frame has come to.

        Raises:
            UnansweredError: It is one more than there are ways.
            EndlessLoopError: A loop that only this branch ends would never end.
        """
        place = (frame.f_code, frame.f_lasti)
        if place not in self._places:
            if len(self._places) == len(self.ways):
                raise UnansweredError(_NUMBER_OF)
            self._places[place] = len(self._places)
            self._lines.append(_line(frame))
        self._num_taken += 1
        if self._num_taken > self._most_taken:
            raise EndlessLoopError(_NUMBER_OF)
        return self.ways[self._places[place]]


def each_way(run: Callable[[Ways], _Result]) -> dict[Ways, _Result]:
    """Return what a run gives for every way that it can go. One in which the workload fails is none that a job goes.

    Args:
        run: Raises an `OpenBranchError` where it comes to a branch beyond the ways it is given.

    Raises:
        TraceError: A way has no end, or the workload fails in all of them. Or there are too many branches, or a way
            cannot be traced otherwise: what is raised then is that the first branch cannot be answered.
    """
    results: dict[Ways, _Result] = {}
    refusal: TraceError | None = None
    failure: TraceError | None = None
    to_run: list[Ways] = [()]
    while to_run:
        ways = to_run.pop()
        try:
            results[ways] = run(ways)
        except OwnFailureError as error:
            failure = error
        except TraceError as error:
            refusal = refusal or error
            if isinstance(error.__cause__, EndlessLoopError):
                raise
            if len(ways) == MOST_BRANCHES or not isinstance(error, OpenBranchError):
                raise refusal from error
            to_run += [(*ways, False), (*ways, True)]
    if failure is not None and not results:
        raise failure
    return results


def _line(frame: FrameType) -> str:
    name, number = frame.f_code.co_filename, frame.f_lineno
    return f"{Path(name).name}:{number} ({linecache.getline(name, number).strip()})"
