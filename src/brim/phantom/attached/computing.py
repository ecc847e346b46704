"""Inside a job on phantoms: what is computed although no kernel runs, and what is left out although the host could."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brim.phantom.attached import kernels
from brim.phantom.attached.operations import Operations
from brim.phantom.attached.sizes import Sizes
from brim.phantom.attached.values import Known, Values
from brim.phantom.attached.weights import Weights

_attached: list[Operations] = []


def attach(settings: Mapping[str, Any]) -> None:
    """See torch's operations in this process, as the start-up hook asks."""
    operations, known = Operations(), Known()
    Weights().attach(operations)
    Values(known).attach(operations)
    Sizes(known).attach(operations)
    kernels.attach()
    _attached.append(operations)  # torch forgets them with this object
