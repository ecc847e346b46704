"""Inside a watched job that knows nothing of brim: sees optimizers step and errors of memory, and changes nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from brim.findings import Verdict
from brim.probing.verdicts import classify, describe
from brim.watching.telling import diary


def attach(settings: Mapping[str, Any]) -> None:
    """Watch this process, as the start-up hook asks once torch has been imported."""
    folder = Path(settings["folder"])
    turns = Turns()

    def on_step(optimizer: object, args: Any, kwargs: Any) -> None:
        if turns.begins_step(id(optimizer)):
            diary(folder).see_step()

    sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(on_step)
    diary(folder)  # writes when the process ends
    _watch_exceptions(folder)


class Turns:
    """Tells steps of a job from steps of its optimizers: several that take turns make one step together.

    >>> turns = Turns()
    >>> [turns.begins_step(optimizer) for optimizer in (1, 2, 1, 2)]
    [True, False, True, False]

    One that takes the place of another, in a second phase, makes steps of its own from its second on:

    >>> [turns.begins_step(optimizer) for optimizer in (3, 3, 3)]
    [False, True, True]
    """

    def __init__(self) -> None:
        self._had_theirs: set[int] = set()

    def begins_step(self, optimizer: int) -> bool:
        """Return whether an optimizer's step is the first of a new step of the job."""
        is_first = not self._had_theirs or optimizer in self._had_theirs
        if is_first:
            self._had_theirs.clear()
        self._had_theirs.add(optimizer)
        return is_first


def _watch_exceptions(folder: Path) -> None:
    show = sys.excepthook

    def note_and_show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if classify(error, nearly_full=False) is Verdict.OOM:
            diary(folder).see_oom(describe(error))
        show(kind, error, trace)

    sys.excepthook = note_and_show
