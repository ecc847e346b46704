"""A command below a keeper: it ends with all that it starts, also when brim is killed."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

from brim.probing.scripts.command import find_program

# Where a command runs: in a session of its own, or in the group of brim, which the terminal belongs to.
APART, TOGETHER = "apart", "together"
# How long the keeper may take to end everything.
_CLOSING_SECONDS = 30.0

Stream = int | IO[bytes] | None


class Kept:
    """A running command; it begins at once."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdin: Stream,
        stdout: Stream,
        stderr: Stream,
        has_terminal: bool = False,
    ) -> None:
        """Start a command.

        Args:
            words: The program, which may lie beside brim's Python, and its arguments.
            environment: All of its environment.
            stdin: As `subprocess.Popen` takes it, like the other two.
            stdout: Where it prints.
            stderr: Where its errors go.
            has_terminal: Whether it may read from brim's terminal and gets Ctrl-C from there.
        """
        lifeline_read, self._lifeline = os.pipe()
        self._report, report_write = os.pipe()
        place = TOGETHER if has_terminal else APART
        keeper = [sys.executable, "-m", "brim.probing.scripts.keeper", str(lifeline_read), str(report_write), place]
        try:
            self._process = subprocess.Popen(
                [*keeper, find_program(words[0]) or words[0], *words[1:]],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                env=dict(environment),
                pass_fds=(lifeline_read, report_write),
                start_new_session=not has_terminal,
            )
        finally:
            os.close(lifeline_read)
            os.close(report_write)

    @property
    def stdout(self) -> IO[bytes] | None:
        """What it prints, where that goes to a pipe."""
        return self._process.stdout

    @property
    def stderr(self) -> IO[bytes] | None:
        """The same of its errors."""
        return self._process.stderr

    def wait(self, seconds: float) -> bool:
        """Wait at most so long and return whether the command has ended by itself."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def interrupt(self) -> None:
        """Give a command that has the terminal Ctrl-C, unless it has just got it from there."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._lifeline, b"\3")

    def end(self) -> dict[str, Any]:
        """End everything that still runs; return `exit_code` and `num_left` where the command ended by itself."""
        has_ended = self._process.poll() is not None
        os.close(self._lifeline)
        try:
            self._process.wait(_CLOSING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with os.fdopen(self._report, "rb") as report:
            told = report.read()
        return dict(json.loads(told)) if told and has_ended else {}
