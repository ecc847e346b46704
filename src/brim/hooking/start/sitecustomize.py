"""Python runs this at the start of every process of a command: it waits for torch, and then calls modules of brim.

Nothing else may happen here: launchers, data loaders and programs that never touch torch run it too. It is no module
of the package but the only file of a folder that comes first on PYTHONPATH, so it also runs the file it hides.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

_HERE = str(Path(__file__).resolve().parent)


def _run_the_hidden_one() -> None:
    """Run the environment's own sitecustomize, which this file is found before."""
    elsewhere = [entry for entry in sys.path if str(Path(entry or ".").resolve()) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


class _TorchWatch:
    """A finder that finds nothing itself: it has what finds torch tell when torch has been imported."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            loader, run = spec.loader, spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                run(module)
                self._then()

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _find_brim() -> None:
    """Let a Python without brim import the one that this file belongs to: this part of it needs torch alone."""
    if importlib.util.find_spec("brim") is None:
        package = Path(__file__).resolve().parents[2]
        spec = importlib.util.spec_from_file_location(
            package.name, package / "__init__.py", submodule_search_locations=[str(package)]
        )
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[package.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def _call_brim() -> None:
    _find_brim()
    for settings in json.loads(os.environ["BRIM_HOOK"]):
        try:
            Path(settings["folder"], f"{os.getpid()}.torch").touch()  # the command gets on, if only with its imports
            importlib.import_module(settings["module"]).attach(settings)
        except Exception:  # noqa: BLE001  the command must not fail for it
            Path(settings["folder"], "hook-failed.txt").write_text(traceback.format_exc())


_run_the_hidden_one()
if "BRIM_HOOK" in os.environ:
    sys.meta_path.insert(0, _TorchWatch(_call_brim))
