"""Where a workload must fit: capacity, free memory, limits and peaks."""

from brim.devices.device import Device, resolve, resolve_ranks
from brim.devices.meter import Meter, make_meter

__all__ = ["Device", "Meter", "make_meter", "resolve", "resolve_ranks"]
