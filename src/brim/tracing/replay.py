"""What the CPU's real allocator makes of a trace: the same requests, without the arithmetic.

The memory that is asked for is never touched, so a replay costs milliseconds and no memory, but the process grows as
it would in a real run: by what is live, and by what the allocator rounds up, keeps and cannot reuse.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

from brim.devices.cpu import data_bytes, peak_data_bytes

# How torch aligns every tensor on the CPU, in bytes (c10/core/alignment.h).
_ALIGNMENT = 64


def replayed_bytes(events: Sequence[tuple[int, int]]) -> int | None:
    """Return by how much a process grows at most when it repeats a ledger's events; None where that fails."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write_end, str(_replay(events)).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as result:
        text = result.read()
    os.waitpid(pid, 0)
    return int(text) if text.isdigit() else None


def _replay(events: Sequence[tuple[int, int]]) -> int | None:
    libc = ctypes.CDLL(None)
    libc.posix_memalign.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
    libc.free.argtypes = (ctypes.c_void_p,)
    before_bytes = data_bytes()
    held: dict[int, int | None] = {}
    pointer = ctypes.c_void_p()
    for number, num_bytes in events:
        if number in held:
            libc.free(held.pop(number))
        elif num_bytes:
            if libc.posix_memalign(ctypes.byref(pointer), _ALIGNMENT, num_bytes):
                return None
            held[number] = pointer.value
    return peak_data_bytes() - before_bytes
