"""Tests whose worst case is plain from where they stand: a loop that may stop early goes on, a check holds.

A trace has no values, so a test of one could go either way. In most places either way may take more memory, and each is
traced (`branches.py`). In four it is known: `if …: break` in a loop that counts is asked so that texts may end, and the
longest take most; `while …:` likewise; `assert …` and `if …: raise` hold in a job that is to run, where nobody catches
what they raise; a branch that only prints, or only keeps what the test compares, is taken. Then what is asked about
has to be what the test looks at, and no part of it.
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
from enum import Enum
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
# What a test may do with an answer before it looks at it: then the answer is not the test's.
_OWN_LOGIC = (ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp, ast.Lambda, ast.IfExp, ast.NamedExpr)
_ASKING_BUILTINS = frozenset(("bool", "any", "all", "sum", "list", "set", "sorted"))
# What is called, or whose methods are, only to tell something.
_TELLERS = frozenset(("print", "log", "logger", "logging", "warnings"))
# What loops go over that only count.
_COUNTERS = frozenset(("range", "count", "trange"))


class How(Enum):
    """In which way a value is asked for."""

    TRUTH = "bool(…), or a test of it"
    ITEM = "….item() of a truth value"
    COMPARED = "a number compared with another"
    CONTAINED = "in …"
    CALLED = "torch.equal(…) and the like"


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

    def answer(self, frame: FrameType, how: How) -> bool | None:
        """Return what is to be answered; None where what is asked about is not what the test looks at."""
        asked = self.answers
        if len(asked) > 1:
            at = _position(frame)
            asked = tuple(each for each in asked if at is not None and _start(each[0]) <= at < _end(each[0]))
        if len(asked) != 1:
            return None
        ((looked_at, answer),) = asked
        return answer if _is_asked(looked_at, how) else None


class Questions:
    """Answers tests of values in one trace."""

    def __init__(self) -> None:
        self._answered: Counter[tuple[CodeType, int]] = Counter()

    def answer(self, frame: FrameType | None, how: How) -> bool | None:
        """Return what a tensor is that is asked about in a frame; None where nobody can say.

        Args:
            frame: Where it is asked.
            how: In which way.

        Raises:
            EndlessLoopError: The loop would never end.
        """
        if frame is None or is_answered_elsewhere(frame):
            return None
        tests = [test for test in _tests(frame.f_code.co_filename) if frame.f_lineno in test.lines]
        if not tests:
            return None
        test = min(tests, key=lambda test: len(test.lines))
        answer = test.answer(frame, how)
        place = (frame.f_code, frame.f_lineno)
        self._answered[place] += 1
        if answer is not None and (test.is_endless or self._answered[place] > MOST_ANSWERS):
            raise EndlessLoopError(torch.ops.aten._local_scalar_dense.default)
        return answer


def line_at(filename: str, number: int) -> str:
    """Return a line of a file as people are told of it."""
    return f"{Path(filename).name}:{number} ({linecache.getline(filename, number).strip()})"


def is_answered_elsewhere(frame: FrameType) -> bool:
    """Return whether what a frame asks about is answered by those who know how long texts become."""
    return str(frame.f_globals.get("__name__", "")).startswith(_ANSWERED_ELSEWHERE)


def asking_frame() -> FrameType | None:
    """Return the innermost caller that is neither torch nor brim."""
    return outside(sys._getframe(1), (_TORCH, _HERE, "<"))


def outside(frame: FrameType | None, places: tuple[str, ...] = (_HERE,)) -> FrameType | None:
    """Return the innermost of a frame and its callers that is not in one of these places, as in brim."""
    while frame is not None and frame.f_code.co_filename.startswith(places):
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
    """Collects tests; knows the function and the loops around each, and whether what is raised there is caught."""

    def __init__(self) -> None:
        self.tests: list[_Test] = []
        self._function: ast.FunctionDef | None = None
        self._loops: list[ast.For | ast.While] = []
        self._num_caught = 0

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        before = self._function, self._loops, self._num_caught
        self._function, self._loops, self._num_caught = node, [], 0
        self.generic_visit(node)
        self._function, self._loops, self._num_caught = before

    def visit_Try(self, node: ast.Try) -> None:
        self._num_caught += bool(node.handlers)
        for statement in node.body:
            self.visit(statement)
        self._num_caught -= bool(node.handlers)
        for part in (*node.handlers, *node.orelse, *node.finalbody):
            self.visit(part)

    def visit_For(self, node: ast.For) -> None:
        self._visit_loop(node)

    def visit_While(self, node: ast.While) -> None:
        self._add(node.test, wanted=True, is_endless=_is_alone(node.test) and not _num_ways_out(node))
        self._visit_loop(node)

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.body[-1], ast.Raise) and not self._num_caught:
            self._add(node.test, wanted=False, is_endless=False)
        elif self._loops and (self._only_ends(node.body) or self._only_ends(node.orelse)):
            is_endless = _never_ends(self._loops[-1]) and _is_alone(node.test)
            self._add(node.test, wanted=not self._only_ends(node.body), is_endless=is_endless)
        elif not node.orelse and all(_only_tells(statement, node.test) for statement in node.body):
            self._add(node.test, wanted=True, is_endless=False)
        self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        if not self._num_caught:
            self._add(node.test, wanted=True, is_endless=False)

    def _visit_loop(self, node: ast.For | ast.While) -> None:
        self._loops.append(node)
        self.generic_visit(node)
        self._loops.pop()

    def _only_ends(self, body: list[ast.stmt]) -> bool:
        """Return whether a branch does nothing but end the loop, which else goes on and ends the same way."""
        if len(body) != 1:
            return False
        loop, only = self._loops[-1], body[0]
        if isinstance(only, ast.Break):
            return isinstance(loop, ast.While) or _counts(loop)
        if isinstance(only, ast.Return):
            return self._function is not None and ast.dump(only) == ast.dump(_last(self._function))
        return isinstance(only, ast.Assign) and isinstance(only.value, ast.Constant) and _is_flag(only.targets, loop)

    def _add(self, test: ast.expr, *, wanted: bool, is_endless: bool) -> None:
        lines = range(test.lineno, (test.end_lineno or test.lineno) + 1)
        self.tests.append(_Test(lines=lines, answers=tuple(_looked_at(test, wanted)), is_endless=is_endless))


def _only_tells(statement: ast.stmt, test: ast.expr) -> bool:
    """Return whether a statement only prints, or only keeps something that a test compares, such as the best loss."""
    if isinstance(statement, ast.Assign):
        kept = ast.dump(statement.value)
        return isinstance(test, ast.Compare) and any(ast.dump(each) == kept for each in (test.left, *test.comparators))
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return isinstance(statement, ast.Pass)
    called = statement.value.func
    owner = called.value if isinstance(called, ast.Attribute) else called
    return isinstance(owner, ast.Name) and owner.id in _TELLERS


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


def _is_asked(looked_at: ast.expr, how: How) -> bool:
    """Return whether what is asked in some way is what a test looks at, and not a part of it."""
    nodes = list(ast.walk(looked_at))
    names = [_called(node) for node in nodes]
    if names[0] == "bool" and isinstance(looked_at, ast.Call) and len(looked_at.args) == 1:
        return _is_asked(looked_at.args[0], how)
    if any(isinstance(node, _OWN_LOGIC) for node in nodes) or not _ASKING_BUILTINS.isdisjoint(names):
        return False
    if how is How.ITEM:
        return isinstance(looked_at, ast.Call) and getattr(looked_at.func, "attr", None) == "item"
    if isinstance(looked_at, ast.Compare):
        is_in = isinstance(looked_at.ops[-1], (ast.In, ast.NotIn))
        return is_in == (how is How.CONTAINED) and not any(isinstance(op, (ast.Is, ast.IsNot)) for op in looked_at.ops)
    return how in (How.TRUTH, How.CALLED)


def _called(node: ast.AST) -> str | None:
    """Return the name of the function that is called, if that is a plain one."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None


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


def _counts(loop: ast.For) -> bool:
    """Return whether a loop goes over numbers, so that more passes are all that going on means."""
    return _called(loop.iter) in _COUNTERS


def _last(function: ast.FunctionDef) -> ast.stmt:
    """Return what a function does at last; one without a return ends as with an empty one."""
    last = function.body[-1]
    return last if isinstance(last, ast.Return) else ast.Return(value=None)


def _is_flag(targets: list[ast.expr], loop: ast.For | ast.While) -> bool:
    """Return whether a name is what a loop looks at before each pass."""
    if not isinstance(loop, ast.While) or len(targets) != 1 or not isinstance(targets[0], ast.Name):
        return False
    return any(isinstance(node, ast.Name) and node.id == targets[0].id for node in ast.walk(loop.test))


def _is_alone(test: ast.expr) -> bool:
    """Return whether a test looks at one thing alone, which in a trace never changes."""
    return not isinstance(test, ast.BoolOp)


def _never_ends(loop: ast.For | ast.While) -> bool:
    """Return whether a loop has one way out at most."""
    return isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant) and _num_ways_out(loop) <= 1


def _num_ways_out(loop: ast.For | ast.While) -> int:
    return sum(isinstance(node, (ast.Break, ast.Return)) for node in ast.walk(loop))
