"""The meter: a limit on this process's use of a device, and its peak."""

from __future__ import annotations

from typing import Protocol

from brim.units import format_bytes

# How an error says that a process is above its limit from the start.
NO_ROOM = "before the workload is built"


class Meter(Protocol):
    """What a probe needs of its device.

    Attributes:
        device_name: The torch device that is measured.
        baseline_bytes: What the process held before the workload was built.
    """

    device_name: str
    baseline_bytes: int

    def limit(self, limit_bytes: int) -> None:
        """Make every allocation above `limit_bytes` fail from now on.

        Raises:
            MemoryError: The process holds more than that already.
        """

    def lift(self) -> None:
        """Undo `limit`."""

    def reset(self) -> None:
        """Start measuring the peak anew."""

    def peaks(self) -> dict[str, int]:
        """Return the peaks since `reset`; `peak_bytes` is the one that the limit counts."""
        ...

    def synchronize(self) -> None:
        """Wait until all work on the device is done."""

    @property
    def is_nearly_full(self) -> bool:
        """Whether the peak came so close to the limit that a vague failure is one of memory."""
        ...


def check_room(held_bytes: int, limit_bytes: int) -> None:
    """Raise where a process is above its limit from the start: a job that asks for nothing more would seem to fit."""
    if held_bytes > limit_bytes:
        raise MemoryError(
            f"the process holds {format_bytes(held_bytes)} {NO_ROOM}, above the limit of {format_bytes(limit_bytes)}"
        )


def make_meter(device_name: str) -> Meter:
    """Return a meter for a torch device in this process."""
    if device_name == "cpu":
        from brim.devices.cpu import CpuMeter

        return CpuMeter()
    if device_name.startswith("phantom"):
        from brim.devices.phantom import PhantomMeter

        return PhantomMeter(device_name)
    from brim.devices.cuda import CudaMeter

    return CudaMeter(device_name)
