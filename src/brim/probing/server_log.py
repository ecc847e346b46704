"""What the server and its probes print: one file that all of them share."""

from __future__ import annotations

import os
import tempfile

_TAIL_BYTES = 4000


class ServerLog:
    """A file without a name; knows where the output of the last request begins."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  closed by close()
        self._begin = 0

    def fileno(self) -> int:
        """Return the file descriptor to print to."""
        return self._file.fileno()

    def clear(self) -> None:
        """Forget everything, for a new server."""
        os.ftruncate(self.fileno(), 0)
        # A temporary file is not opened for appending, whatever its mode says: the next line would follow a hole.
        os.lseek(self.fileno(), 0, os.SEEK_SET)
        self._begin = 0

    def mark(self) -> None:
        """Let the tail begin here: what was printed before is of other requests."""
        self._begin = self._size()

    def tail(self) -> str:
        """Return the last lines since the mark."""
        begin = max(self._begin, self._size() - _TAIL_BYTES)
        # pread leaves the position alone, which the children share.
        tail = os.pread(self.fileno(), _TAIL_BYTES, begin)
        if begin > self._begin:
            # What is left of a line that was cut; a single endless one is shown as it is.
            tail = tail.partition(b"\n")[2] or tail
        return tail.decode(errors="replace")

    def close(self) -> None:
        """Close the file, which ends it."""
        self._file.close()

    def _size(self) -> int:
        return os.fstat(self.fileno()).st_size
