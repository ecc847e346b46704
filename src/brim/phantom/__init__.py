"""GPUs that are not there: torch's own CUDA build runs on libraries that count memory and compute nothing."""

from brim.phantom.launching import Event, Phantoms
from brim.phantom.torches import Torch, find_torch, read_torch

__all__ = ["Event", "Phantoms", "Torch", "find_torch", "read_torch"]
