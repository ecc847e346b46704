"""The command line: one file per command; this one only starts it."""

from __future__ import annotations

import gc
import sys

__all__ = ["main"]

# Nearly all that is made while importing stays, so looking for garbage as often as usual only costs time.
_OBJECTS_BETWEEN_COLLECTIONS = 20_000


def main() -> None:
    """Run the command line; Ctrl-C while it is still being imported ends it as later on."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    try:
        from brim.cli.app import main as run
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(130)
    run()
