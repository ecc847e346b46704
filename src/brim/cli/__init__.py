"""The command line: one file per command; this one only starts it."""

from __future__ import annotations

import gc
import sys

from brim.importing import OBJECTS_BETWEEN_COLLECTIONS

__all__ = ["main"]


def main() -> None:
    """Run the command line; Ctrl-C while it is still being imported ends it as later on."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    try:
        from brim.cli.app import main as run
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)
    run()
