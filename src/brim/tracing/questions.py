"""Tests whose worst case is plain from where they stand: a loop that may stop early goes on, a check holds.

A trace has no values, so a test of one could go either way. In most places either way may take more memory, and the
test is refused. In three it is known: `if …: break` in a loop is asked so that texts may end, and the longest take
most; `while …:` likewise; `assert …` and `if …: raise` hold in a job that is to run.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)
# transformers asks about its texts, and is answered by those who know them (`generation.py`).
_ANSWERED_ELSEWHERE = "transformers.generation"
# How often a line is answered in one trace before its loop is taken for endless: more tokens than anybody generates.
MOST_ANSWERS = 16_384


class EndlessLoopError(DataDependentOutputException):
    """A loop that nothing ends but a value, which a trace does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Test:
    """A statement's test.

    Attributes:
        lines: Where it stands.
        answer: What every tensor in it is to be; None where they are not to be the same.
        is_endless: Whether nothing else ends the loop around it.
    """

    lines: range
    answer: bool | None
    is_endless: bool


class Questions:
    """Answers tests of values in one trace."""

    def __init__(self) -> None:
        self._answered: Counter[tuple[CodeType, int]] = Counter()

    def answer(self, frame: FrameType | None) -> bool | None:
        """Return what a tensor is that is asked about in a frame; None where nobody can say.

        Raises:
            EndlessLoopError: The loop would never end.
        """
        if frame is None or str(frame.f_globals.get("__name__", "")).startswith(_ANSWERED_ELSEWHERE):
            return None
        tests = [test for test in _tests(frame.f_code.co_filename) if frame.f_lineno in test.lines]
        if not tests:
            return None
        test = min(tests, key=lambda test: len(test.lines))
        place = (frame.f_code, frame.f_lineno)
        self._answered[place] += 1
        if test.answer is not None and (test.is_endless or self._answered[place] > MOST_ANSWERS):
            raise EndlessLoopError(torch.ops.aten._local_scalar_dense.default)
        return test.answer


def asking_frame() -> FrameType | None:
    """Return the innermost caller that is neither torch nor brim."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_TORCH, _HERE, "<")):
        frame = frame.f_back
    return frame


@functools.cache
def _tests(filename: str) -> tuple[_Test, ...]:
    """Return the tests of a file whose worst case is known."""
    try:
        tree = ast.parse("".join(linecache.getlines(filename)))
    except SyntaxError:
        return ()
    finder = _Finder()
    finder.visit(tree)
    return tuple(finder.tests)


class _Finder(ast.NodeVisitor):
    """Collects tests; knows the loops around each, up to its function."""

    def __init__(self) -> None:
        self.tests: list[_Test] = []
        self._loops: list[ast.For | ast.While] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        loops, self._loops = self._loops, []
        self.generic_visit(node)
        self._loops = loops

    def visit_For(self, node: ast.For) -> None:
        self._visit_loop(node)

    def visit_While(self, node: ast.While) -> None:
        self._add(node.test, wanted=True, is_endless=_is_alone(node.test) and not _num_ways_out(node))
        self._visit_loop(node)

    def visit_If(self, node: ast.If) -> None:
        last = node.body[-1]
        if isinstance(last, ast.Raise) or (self._loops and isinstance(last, (ast.Break, ast.Continue, ast.Return))):
            is_endless = not isinstance(last, ast.Raise) and _never_ends(self._loops[-1])
            self._add(node.test, wanted=False, is_endless=is_endless and _is_alone(node.test))
        self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        self._add(node.test, wanted=True, is_endless=False)

    def _visit_loop(self, node: ast.For | ast.While) -> None:
        self._loops.append(node)
        self.generic_visit(node)
        self._loops.pop()

    def _add(self, test: ast.expr, *, wanted: bool, is_endless: bool) -> None:
        flips = _flips(test)
        self.tests.append(
            _Test(
                lines=range(test.lineno, (test.end_lineno or test.lineno) + 1),
                answer=wanted != flips.pop() if len(flips) == 1 else None,
                is_endless=is_endless,
            )
        )


def _flips(test: ast.expr) -> set[bool]:
    """Return whether what a test looks at is negated on the way to its outcome; both where it is here and there."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return {not each for each in _flips(test.operand)}
    if isinstance(test, ast.BoolOp):
        return {each for value in test.values for each in _flips(value)}
    return {False}


def _is_alone(test: ast.expr) -> bool:
    """Return whether a test looks at one thing alone, which in a trace never changes."""
    return not isinstance(test, ast.BoolOp)


def _never_ends(loop: ast.For | ast.While) -> bool:
    """Return whether a loop has one way out at most."""
    return isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant) and _num_ways_out(loop) <= 1


def _num_ways_out(loop: ast.For | ast.While) -> int:
    return sum(isinstance(node, (ast.Break, ast.Return)) for node in ast.walk(loop))
