"""Real memory behind a trace on the CPU: asked for and given back as torch would, and never touched.

What is not touched costs no memory and no time, but the process grows as it would in a real run: by what is live, and
by what the allocator rounds up, keeps and cannot reuse. It has to happen while the step is traced: the small objects
that Python and autograd make meanwhile lie between the tensors and keep freed memory from going back to the system.
"""

from __future__ import annotations

import ctypes

from brim.devices.cpu import data_bytes
from brim.tracing.shared_imports import SharedImports

# How torch aligns every tensor on the CPU, in bytes (c10/core/alignment.h).
_ALIGNMENT = 64


class Backing:
    """Holds as much real memory as the tensors of a trace would.

    Attributes:
        is_complete: Whether all that was asked for was there.
        once_bytes: What building took that is no tensor's: modules that it imported here.

    Args:
        shared_bytes: What modules take that only tracing has imported here.
    """

    def __init__(self, shared_bytes: int = 0) -> None:
        self._libc = ctypes.CDLL(None)
        self._libc.posix_memalign.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
        self._libc.free.argtypes = (ctypes.c_void_p,)
        self._pointer = ctypes.c_void_p()
        self.is_complete = True
        self.once_bytes = 0
        self._baseline_bytes = data_bytes()
        self._shared = SharedImports(shared_bytes)

    @property
    def shared_bytes(self) -> int:
        """What the job's own process holds of modules that only tracing has imported here."""
        return self._shared.num_bytes if self._shared.are_asked else 0

    def begin_build(self) -> None:
        """Note that the workload is built from now on."""
        self._shared.begin()

    def end_build(self, live_bytes: int) -> None:
        """Note that the workload is built and holds so many bytes of tensors."""
        self._shared.end()
        self.once_bytes = max(0, data_bytes() - self._baseline_bytes - live_bytes)

    def take(self, num_bytes: int) -> int | None:
        """Return the address of new memory; None where nothing is asked for or there is no more."""
        if num_bytes == 0:
            return None
        if self._libc.posix_memalign(ctypes.byref(self._pointer), _ALIGNMENT, num_bytes):
            self.is_complete = False
            return None
        return self._pointer.value

    def give_back(self, address: int | None) -> None:
        """Free what `take` returned."""
        if address is not None:
            self._libc.free(address)
