"""Memory and time by running: the probe, its process, its verdict."""

from brim.probing.isolated import IsolatedProber
from brim.probing.outcome import Outcome, Prober

__all__ = ["IsolatedProber", "Outcome", "Prober"]
