"""Tests whose worst case is plain from where they stand: a loop that may stop early goes on, a check holds.

A trace has no values, so a test of one could go either way. In most places either way may take more memory, and the
test is refused. In three it is known: `if …: break` in a loop is asked so that texts may end, and the longest take
most; `while …:` likewise; `assert …` and `if …: raise` hold in a job that is to run.
"""

from __future__ import annotations

import ast
import dis
import functools
import linecache
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)
# transformers asks about its texts, and is answered by those who know them (`generation.py`).
_ANSWERED_ELSEWHERE = "transformers.generation"
# How often a line is answered in one trace before its loop is taken for endless: more tokens than most generate.
MOST_ANSWERS = 4_096


class EndlessLoopError(DataDependentOutputException):
    """A loop that nothing ends but a value, which a trace does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Test:
    """A statement's test.

    Attributes:
        lines: Where it stands.
        answers: What each of the things that it looks at is to be, with where that stands.
        is_endless: Whether nothing else ends the loop around it.
    """

    lines: range
    answers: tuple[tuple[ast.expr, bool], ...]
    is_endless: bool

    def answer(self, frame: FrameType) -> bool | None:
        """Return what is to be answered; None where it is not plain which of several things is asked about."""
        if len({answer for _, answer in self.answers}) == 1:
            return self.answers[0][1]
        at = _position(frame)
        found = [
            answer for looked_at, answer in self.answers if at is not None and _start(looked_at) <= at < _end(looked_at)
        ]
        return found[0] if len(found) == 1 else None


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
        answer = test.answer(frame)
        place = (frame.f_code, frame.f_lineno)
        self._answered[place] += 1
        if answer is not None and (test.is_endless or self._answered[place] > MOST_ANSWERS):
            raise EndlessLoopError(torch.ops.aten._local_scalar_dense.default)
        return answer


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
        if isinstance(node.body[-1], ast.Raise):
            self._add(node.test, wanted=False, is_endless=False)
        elif self._loops and (_only_ends(node.body) or _only_ends(node.orelse)):
            is_endless = _never_ends(self._loops[-1]) and _is_alone(node.test)
            self._add(node.test, wanted=not _only_ends(node.body), is_endless=is_endless)
        self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        self._add(node.test, wanted=True, is_endless=False)

    def _visit_loop(self, node: ast.For | ast.While) -> None:
        self._loops.append(node)
        self.generic_visit(node)
        self._loops.pop()

    def _add(self, test: ast.expr, *, wanted: bool, is_endless: bool) -> None:
        self.tests.append(
            _Test(
                lines=range(test.lineno, (test.end_lineno or test.lineno) + 1),
                answers=tuple(_looked_at(test, wanted)),
                is_endless=is_endless,
            )
        )


def _looked_at(test: ast.expr, wanted: bool) -> Iterator[tuple[ast.expr, bool]]:
    """Yield what a test looks at, each with what it has to be for the outcome that is wanted."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _looked_at(test.operand, not wanted)
    elif isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _looked_at(value, wanted)
    elif isinstance(test, ast.Compare) and isinstance(test.ops[-1], ast.NotIn):
        yield test, not wanted  # asked is whether it is in
    else:
        yield test, wanted


def _position(frame: FrameType) -> tuple[int, int] | None:
    """Return line and column of what a frame asks about now; None before Python 3.11, which does not tell.

    An instruction that asks, such as a jump, is told to stand elsewhere; that before it made what is asked about.
    """
    before = [each for each in dis.get_instructions(frame.f_code) if each.offset < frame.f_lasti]
    positions = getattr(before[-1], "positions", None) if before else None
    if positions is None or positions.lineno is None or positions.col_offset is None:
        return None
    return positions.lineno, positions.col_offset


def _start(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or sys.maxsize


def _only_ends(body: list[ast.stmt]) -> bool:
    """Return whether statements do nothing that takes memory but end a loop, at once or by a flag."""
    ends = isinstance(body[-1], (ast.Break, ast.Return)) if body else False
    has_flag = any(isinstance(each, ast.Assign) for each in body)
    return (ends or has_flag) and all(_is_light(each) for each in body)


def _is_light(statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.Assign, ast.Return)):
        return statement.value is None or isinstance(statement.value, (ast.Constant, ast.Name, ast.Attribute))
    return isinstance(statement, (ast.Break, ast.Pass))


def _is_alone(test: ast.expr) -> bool:
    """Return whether a test looks at one thing alone, which in a trace never changes."""
    return not isinstance(test, ast.BoolOp)


def _never_ends(loop: ast.For | ast.While) -> bool:
    """Return whether a loop has one way out at most."""
    return isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant) and _num_ways_out(loop) <= 1


def _num_ways_out(loop: ast.For | ast.While) -> int:
    return sum(isinstance(node, (ast.Break, ast.Return)) for node in ast.walk(loop))
