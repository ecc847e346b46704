"""The account of a job on phantom GPUs: one file, mapped by brim and by every process of it (driver/account.c)."""

from __future__ import annotations

import ctypes
import mmap
from dataclasses import dataclass
from pathlib import Path

from brim.phantom.card import Card

_MAGIC, _LAYOUT = 0x6D697262, 2
MAX_DEVICES, MAX_PROCESSES = 16, 256


class _Device(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * 96),
        ("total_bytes", ctypes.c_uint64),
        ("context_bytes", ctypes.c_uint64),
        *((name, ctypes.c_int32) for name in ("major", "minor", "num_sms", "threads_per_sm", "blocks_per_sm")),
        *((name, ctypes.c_int32) for name in ("shared_bytes_per_sm", "l2_bytes", "memory_bus_bits", "clock_khz")),
        *((name, ctypes.c_int32) for name in ("memory_clock_khz", "binary", "unused")),
        ("used_bytes", ctypes.c_uint64),
        ("peak_bytes", ctypes.c_uint64),
    )


class _Usage(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("used_bytes", "peak_bytes", "refused_bytes", "num_refused")),
        *((name, ctypes.c_uint64) for name in ("allocated_bytes", "allocated_peak_bytes")),
        *((name, ctypes.c_uint64) for name in ("reserved_bytes", "reserved_peak_bytes", "refused_by_torch_bytes")),
    )


class _Process(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        *((name, ctypes.c_uint64) for name in ("num_launches", "num_reads", "pinned_bytes", "pinned_peak_bytes")),
        ("devices", _Usage * MAX_DEVICES),
    )


class _Account(ctypes.Structure):
    _fields_ = (
        ("magic", ctypes.c_uint32),
        ("layout", ctypes.c_uint32),
        *((name, ctypes.c_int32) for name in ("num_devices", "cuda_version", "cudnn_version", "cublas_version")),
        ("nccl_version", ctypes.c_int32),
        ("unused", ctypes.c_int32),
        ("devices", _Device * MAX_DEVICES),
        ("processes", _Process * MAX_PROCESSES),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one process took of one device.

    Attributes:
        is_running: Whether the process has not ended.
        used_bytes: What it holds now, its context among it.
        peak_bytes: The most that it held.
        num_refused: How many requests did not fit; torch's allocator frees what it has cached, and asks again.
        refused_bytes: The last request that torch's allocator then had to refuse; 0 where there was none.
        allocated_peak_bytes: The most that tensors held, as torch's allocator says; 0 where that is not used.
        reserved_peak_bytes: The most that torch's allocator held.
    """

    pid: int
    device: int
    is_running: bool
    used_bytes: int
    peak_bytes: int
    refused_bytes: int
    num_refused: int
    allocated_bytes: int
    allocated_peak_bytes: int
    reserved_peak_bytes: int
    num_launches: int
    pinned_peak_bytes: int


class Account:
    """The file, mapped."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), ctypes.sizeof(_Account))

    def used_bytes(self, device: int = 0) -> int:
        """Return what all processes hold of a device now."""
        return int(self._read().devices[device].used_bytes)

    def peak_bytes(self, device: int = 0) -> int:
        """Return the most that they held."""
        return int(self._read().devices[device].peak_bytes)

    def usages(self) -> list[Usage]:
        """Return what every process took of every device that it used."""
        read = self._read()
        return [
            Usage(
                pid=abs(process.pid),
                device=device,
                is_running=process.pid > 0,
                used_bytes=usage.used_bytes,
                peak_bytes=usage.peak_bytes,
                refused_bytes=usage.refused_by_torch_bytes,
                num_refused=usage.num_refused,
                allocated_bytes=usage.allocated_bytes,
                allocated_peak_bytes=usage.allocated_peak_bytes,
                reserved_peak_bytes=usage.reserved_peak_bytes,
                num_launches=process.num_launches,
                pinned_peak_bytes=process.pinned_peak_bytes,
            )
            for process in read.processes
            if process.pid
            for device, usage in enumerate(process.devices)
            if usage.peak_bytes or usage.num_refused
        ]

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()

    def _read(self) -> _Account:
        return _Account.from_buffer_copy(self._map)


def write_account(
    path: Path, cards: list[Card], *, cuda: tuple[int, int], cudnn: int, cublas: int, nccl: int
) -> Account:
    """Write the account of a job that has not begun."""
    account = _Account(
        magic=_MAGIC,
        layout=_LAYOUT,
        num_devices=len(cards),
        cuda_version=cuda[0] * 1000 + cuda[1] * 10,
        cudnn_version=cudnn,
        cublas_version=cublas,
        nccl_version=nccl,
    )
    for device, card in zip(account.devices, cards, strict=False):
        device.name = card.title.encode()[:95]
        device.total_bytes, device.context_bytes = card.memory_bytes, card.context_bytes
        device.major, device.minor = card.capability
        device.num_sms, device.threads_per_sm, device.blocks_per_sm = (
            card.num_sms,
            card.threads_per_sm,
            card.blocks_per_sm,
        )
        device.shared_bytes_per_sm, device.l2_bytes = card.shared_bytes_per_sm, card.l2_bytes
        device.memory_bus_bits, device.binary = card.memory_bus_bits, card.binary
        device.clock_khz, device.memory_clock_khz = card.clock_khz, card.memory_clock_khz
    path.write_bytes(bytes(account))
    return Account(path)
