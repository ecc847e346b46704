"""Compiles the phantom's driver into brim's wheel, where there is a C compiler; without one brim does without it."""

import importlib.util
import platform
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_BUILD = Path(__file__).parent / "src" / "brim" / "phantom" / "build.py"


class DriverHook(BuildHookInterface):
    """Runs before a wheel is made, also an editable one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the driver, and say in the wheel's name for which machines it is."""
        spec = importlib.util.spec_from_file_location("brim_phantom_build", _BUILD)
        assert spec is not None
        assert spec.loader is not None
        build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build)
        try:
            build.build()
        except build.NotBuiltError as error:
            self.app.display_warning(f"brim is built without its phantom GPU: {error}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"


def _platform() -> str:
    """Return the tag of machines with this processor and a C library that is not older."""
    machine = sysconfig.get_platform().replace("-", "_")
    library, version = platform.libc_ver()
    if library != "glibc":
        return machine
    return machine.replace("linux", f"manylinux_{version.replace('.', '_')}")
