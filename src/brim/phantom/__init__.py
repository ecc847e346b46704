"""GPUs that are not there: torch's own CUDA build runs on libraries that count memory and compute nothing."""

from brim.phantom.held import Held, Snapshot
from brim.phantom.launching import Event, Phantoms
from brim.phantom.torches import Torch, find_torch, read_torch, why_unavailable

__all__ = ["Event", "Held", "Phantoms", "Snapshot", "Torch", "find_torch", "read_torch", "why_unavailable"]
