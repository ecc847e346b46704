"""The command line: one file per command; this one only gathers them."""

from __future__ import annotations

from brim.cli.app import main

__all__ = ["main"]
