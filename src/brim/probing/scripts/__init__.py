"""Commands as they are: started as a user would, seen into without a change to them."""

from brim.probing.scripts.command import Command
from brim.probing.scripts.prober import CommandProber

__all__ = ["Command", "CommandProber"]
