"""Compiles the phantom's driver: run by the build of brim's wheel, and by `python src/brim/phantom/build.py`.

It imports nothing of brim, so that a build can run it before brim is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES = FOLDER / "driver"
BUILT = FOLDER / "lib"
CORE, NAME, ABSENT = "libbrim-phantom.so", "name-template.so", "absent-template.so"
# What the templates are called before they get their real names; the patterns are replaced in place.
NAME_PLACE = "NAME" * 32
VERSION_PLACES = tuple(f"VERSION_{index}_" * 12 for index in range(4))
_MACHINES = ("x86_64", "aarch64")
_FLAGS = ("-std=gnu11", "-O2", "-g0", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")
_TEMPLATES = ("name.c", "absent.c")


class NotBuiltError(Exception):
    """The driver cannot be compiled here; the message says why."""


def build(folder: Path = BUILT) -> list[Path]:
    """Compile the driver into a folder and return its files."""
    if not sys.platform.startswith("linux") or os.uname().machine not in _MACHINES:
        raise NotBuiltError(f"phantoms are for Linux on {' and '.join(_MACHINES)}, this is {sysconfig.get_platform()}")
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None:
        raise NotBuiltError("there is no C compiler: install gcc or clang")
    folder.mkdir(parents=True, exist_ok=True)
    core = sorted(str(path) for path in SOURCES.glob("*.c") if path.name not in _TEMPLATES)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        made = Path(name)
        _compile(compiler, [*core, "-ldl", "-lpthread"], made / CORE, CORE)
        script = made / "version.map"
        script.write_text("".join(f"{place} {{ }};\n" for place in VERSION_PLACES))
        needs_core = [f"-L{made}", "-Wl,--no-as-needed", f"-l:{CORE}", "-Wl,-rpath,$ORIGIN"]
        # The older kind of hash table, which can be written anew without knowing how large it will be.
        _compile(compiler, [str(SOURCES / "absent.c"), *needs_core, "-Wl,--hash-style=sysv"], made / ABSENT, ABSENT)
        # Who looks for a function in a library of that name looks into those that it needs as well.
        named = [str(SOURCES / "name.c"), *needs_core, f"-l:{ABSENT}", f"-Wl,--version-script={script}"]
        _compile(compiler, named, made / NAME, NAME_PLACE)
        return [(made / each).replace(folder / each) for each in (CORE, NAME, ABSENT)]


def _compile(compiler: str, words: list[str], target: Path, name: str) -> None:
    command = [*compiler.split(), *_FLAGS, *words, f"-Wl,-soname,{name}", "-o", str(target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NotBuiltError(f"the compiler {compiler!r} cannot be started: {error.strerror}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NotBuiltError(f"{compiler} failed: {next((line for line in said if 'error' in line), said[-1:])}")


if __name__ == "__main__":
    try:
        for path in build():
            print(path)  # noqa: T201  what was asked for
    except NotBuiltError as error:
        sys.exit(f"Error: {error}.")
