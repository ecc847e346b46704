"""The process that traces are forked from, itself forked from the server when the first is asked for.

Fake tensors need imports that a probe must not have: they would count as the workload's memory. So they happen here,
once for all cases.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

from brim.groups import adopt_orphans, die_with_parent, kill_descendants, kill_group

_DONE = b"."


class Tracer:
    """Answers requests one after the other, in a process group of its own.

    Args:
        prepare: Called once in the new process; what it returns goes to every `answer`.
        answer: Called there for each request.
    """

    def __init__(self, prepare: Callable[[], Any], answer: Callable[[dict[str, Any], Any], None]) -> None:
        request_read, self._request_fd = os.pipe()
        self._done_fd, done_write = os.pipe()
        parent_pid = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setsid()
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                die_with_parent(parent_pid)
                adopt_orphans()
                os.close(self._request_fd)
                os.close(self._done_fd)
                prepared = prepare()
                with os.fdopen(request_read) as lines:
                    for line in lines:
                        answer(json.loads(line), prepared)
                        kill_descendants(os.getpid())  # whatever the workload started and left behind
                        os.write(done_write, _DONE)
            finally:
                os._exit(0)
        os.close(request_read)
        os.close(done_write)

    def ask(self, request: dict[str, Any]) -> int | None:
        """Return None once the request was answered, or the exit code of a process that died over it."""
        try:
            os.write(self._request_fd, (json.dumps(request) + "\n").encode())
        except BrokenPipeError:
            return self._end()
        return None if os.read(self._done_fd, 1) == _DONE else self._end()

    def _end(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        kill_group(self.pid)  # whatever it was tracing in
        os.close(self._request_fd)
        os.close(self._done_fd)
        return os.waitstatus_to_exitcode(status)
