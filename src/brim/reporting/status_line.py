"""A line at the bottom of a terminal that a command prints to at the same time.

The command keeps the terminal to itself: it scrolls in all lines but the last, as with the progress bar of apt. The
line is written in one piece, with the cursor put back to where it was, so that nothing is ever mixed.
"""

from __future__ import annotations

import contextlib
import os
import time
from types import TracebackType

from rich.console import Console
from rich.text import Text

# Control sequences of a VT100, which terminals share.
_SAVE, _RESTORE = "\x1b7", "\x1b8"
_UP, _CLEAR, _WHOLE_REGION = "\x1b[1A", "\x1b[2K", "\x1b[r"
_EVERY_SECONDS = 0.125
# Below it, a line is missed more than it says.
_LEAST_LINES = 5


class StatusLine:
    """The last line of the terminal that a console writes to; a context manager, which gives it back."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._file = console.file.fileno()
        self._size: os.terminal_size | None = None
        self._shown = ""
        self._shown_at = 0.0

    def is_due(self) -> bool:
        """Return whether it may be drawn: not too often, and never from the background."""
        try:
            is_ours = os.tcgetpgrp(self._file) == os.getpgrp()
        except OSError:  # a terminal of another session, or one that is gone
            return False
        return is_ours and time.monotonic() - self._shown_at >= _EVERY_SECONDS

    @property
    def width(self) -> int:
        """How many columns there are."""
        return os.get_terminal_size(self._file).columns

    def draw(self, line: Text) -> None:
        """Show a line instead of the last."""
        self._shown_at = time.monotonic()
        with contextlib.suppress(OSError):  # the terminal is gone, and the job learns that by itself
            self._draw(line)

    def _draw(self, line: Text) -> None:
        size = os.get_terminal_size(self._file)
        if size.lines < _LEAST_LINES:
            return
        with self._console.capture() as captured:
            self._console.print(line, end="", soft_wrap=True)
        shown = captured.get()
        if size == self._size and shown == self._shown:
            return
        begin = "" if size == self._size else self._begin(size)
        self._size, self._shown = size, shown
        self._write(f"{begin}{_SAVE}\x1b[{size.lines};1H{_CLEAR}{shown}{_RESTORE}")

    def _begin(self, size: os.terminal_size) -> str:
        """Return what keeps the last line out of what scrolls; the cursor may be in it."""
        return f"\n{_SAVE}\x1b[1;{size.lines - 1}r{_RESTORE}{_UP}"

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._size is not None:
            with contextlib.suppress(OSError):
                lines = os.get_terminal_size(self._file).lines
                self._write(f"{_SAVE}{_WHOLE_REGION}\x1b[{lines};1H{_CLEAR}{_RESTORE}")

    def _write(self, text: str) -> None:
        os.write(self._file, text.encode())
