"""How often Python looks for garbage while modules are imported."""

from __future__ import annotations

# Nearly all that is made while importing stays, so looking as often as usual only costs time: a third of what importing
# torch and transformers takes. The garbage that waits is 2 MiB.
OBJECTS_BETWEEN_COLLECTIONS = 20_000
