"""Memory and time by running: the probe, its process, its verdict."""

from brim.probing.outcome import Outcome, Prober
from brim.probing.paired import PairedProber

__all__ = ["Outcome", "PairedProber", "Prober"]
