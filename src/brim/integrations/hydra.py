"""A batch size in a Hydra or OmegaConf configuration: `batch_size: ${brim:train.py:Finetune,{seq_len:512},{cap:64}}`.

    from brim.integrations.hydra import register

    register()  # before the configuration is read

The parts are the workload, its case, and settings of `brim.find`; the last two may be left out. A workload's file is
looked for where Hydra was started, also with `hydra.job.chdir=true`.
"""

from __future__ import annotations

import difflib
import inspect
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brim.errors import InputError, NothingFitsError
from brim.extras import needed
from brim.finding import find

AT_LEAST = "2.1"
RESOLVER = "brim"
FORM = "${brim:train.py:Finetune,{seq_len:512},{cap:64}}"
# What a configuration cannot say, or says with the case.
_NOT_SETTINGS = {"workload", "cases", "lengths", "scale_table", "observer"}
SETTINGS = tuple(name for name in inspect.signature(find).parameters if name not in _NOT_SETTINGS)


def register() -> None:
    """Register the resolver `brim`; a second call changes nothing.

    Raises:
        InputError: OmegaConf is missing or too old.
    """
    with needed("omegaconf", AT_LEAST):
        from omegaconf import OmegaConf

    if not OmegaConf.has_resolver(RESOLVER):
        OmegaConf.register_new_resolver(RESOLVER, BatchSizes())


class BatchSizes:
    """Finds batch sizes, each once in this process: a configuration is resolved again at every look."""

    def __init__(self) -> None:
        self._found: dict[str, int] = {}

    def __call__(self, *parts: Any) -> int:
        """Return the largest microbatch of a workload's case, or the fastest with `{goal: fastest}`.

        Args:
            parts: The workload; its case; settings of `brim.find`. The last two may be left out.
        """
        workload, case, settings = _checked(*parts)
        workload = _from_original_folder(workload)
        key = json.dumps([workload, case, settings], sort_keys=True)
        if key not in self._found:
            (finding,) = find(workload, cases=[case] if case else None, **settings)
            if finding.microbatch is None:
                raise NothingFitsError(f"{workload}: {finding.note}.")
            self._found[key] = finding.microbatch
        return self._found[key]


def _from_original_folder(workload: str) -> str:
    """Return the address of a file as seen from where Hydra was started: a run may have changed to its own folder."""
    hydra = sys.modules.get("hydra")
    target, _, name = workload.rpartition(":")
    if hydra is None or not target.endswith(".py"):
        return workload
    try:
        path = Path(hydra.utils.get_original_cwd()) / target
    except ValueError:  # Hydra is imported and runs nothing
        return workload
    return f"{path}:{name}" if path.is_file() else workload


def _checked(
    workload: Any = None, case: Any = None, settings: Any = None, *others: Any
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return the parts of the resolver, or refuse them with what is allowed.

    >>> _checked("train.py:Finetune", {"seq_len": 512})
    ('train.py:Finetune', {'seq_len': 512}, {})
    """
    if not isinstance(workload, str) or not workload:
        raise InputError(f"The workload is missing, which is the first part. Write it as {FORM}.")
    if others:
        raise InputError(f"The parts are a workload, its case and settings, and there are {3 + len(others)}: {FORM}.")
    for name, part in (("The case", case), ("A setting", settings)):
        if part is not None and not isinstance(part, Mapping):
            raise InputError(f"{name} is {part!r}. Write names and values in braces, as in {FORM}.")
    for name in settings or {}:
        if name not in SETTINGS:
            near = difflib.get_close_matches(str(name), SETTINGS, n=1)
            meant = f" Did you mean {near[0]}?" if near else ""
            raise InputError(f"There is no setting {str(name)!r}.{meant} Use some of: {', '.join(SETTINGS)}.")
    return workload, dict(case or {}), dict(settings or {})
