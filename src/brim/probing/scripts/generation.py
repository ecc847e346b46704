"""Whole calls of somebody's `generate`, whichever library it is of."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


class GenerateWatch:
    """Recognises the outermost function called `generate` around a module's call, and tells when it ends.

    The call during which a class is first seen is under way already: it has ended when the next one begins.
    """

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._known: set[CodeType] = set()

    def look(self) -> bool:
        """Return whether the caller runs inside a `generate`."""
        frame = _outermost_generate(sys._getframe(1))
        if frame is None:
            return False
        if frame.f_code not in self._known:
            self._known.add(frame.f_code)
            self._wrap(type(next(iter(frame.f_locals.values()), None)))
        return True

    def _wrap(self, owner: type) -> None:
        generate = getattr(owner, "generate", None)
        if generate is None:
            return
        is_under_way = True

        def generate_and_tell(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_under_way
            if is_under_way:
                is_under_way = False
                self._ended()
            result = generate(*args, **kwargs)
            self._ended()
            return result

        setattr(owner, "generate", generate_and_tell)  # noqa: B010  mypy does not know the user's class


def _outermost_generate(frame: FrameType | None) -> FrameType | None:
    found = None
    while frame is not None:
        if frame.f_code.co_name == "generate":
            found = frame
        frame = frame.f_back
    return found
