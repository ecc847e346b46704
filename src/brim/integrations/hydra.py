"""A batch size in a Hydra or OmegaConf configuration: `batch_size: ${brim:train.py:Finetune,{seq_len:512},{cap:64}}`.

    from brim.integrations.hydra import register

    register()  # before the configuration is read

The parts are the workload, its case, and settings of `brim.find`; the last two may be left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from brim.errors import NothingFitsError
from brim.finding import find
from brim.integrations.extras import require

AT_LEAST = "2.1"
RESOLVER = "brim"


def register() -> None:
    """Register the resolver `brim`; a second call changes nothing.

    Raises:
        InputError: OmegaConf is missing or too old.
    """
    require("omegaconf", AT_LEAST)
    from omegaconf import OmegaConf

    if not OmegaConf.has_resolver(RESOLVER):
        OmegaConf.register_new_resolver(RESOLVER, BatchSizes())


class BatchSizes:
    """Finds batch sizes, each once in this process: a configuration is resolved again at every look."""

    def __init__(self) -> None:
        self._found: dict[str, int] = {}

    def __call__(
        self, workload: str, case: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None, /
    ) -> int:
        """Return the largest microbatch of a workload's case, or the fastest with `{goal: fastest}`."""
        case, settings = dict(case or {}), dict(settings or {})
        key = json.dumps([workload, case, settings], sort_keys=True)
        if key not in self._found:
            (finding,) = find(workload, cases=[case] if case else None, **settings)
            if finding.microbatch is None:
                raise NothingFitsError(f"{workload}: {finding.note}.")
            self._found[key] = finding.microbatch
        return self._found[key]
