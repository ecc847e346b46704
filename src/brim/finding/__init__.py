"""The way from a workload to its findings: remember, trace, search, probe, confirm."""

from brim.finding.find import find
from brim.finding.observer import LogObserver, Observer

__all__ = ["LogObserver", "Observer", "find"]
