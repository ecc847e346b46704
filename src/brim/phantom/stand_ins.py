"""Libraries that stand in for those of CUDA: empty ones with the names that torch asks for, one for what is missing.

The dynamic linker takes a library that is loaded already for any of the same name. So an empty library with the right
name and version comes first, and the driver has the functions. Functions that it does not have are those of a third
library: each says its name when it is called.
"""

from __future__ import annotations

import struct
from pathlib import Path

from brim.errors import InputError
from brim.phantom.asking import error_of, read_asked
from brim.phantom.build import (
    ABSENT,
    BUILT,
    CORE,
    NAME,
    NAME_PLACE,
    VERSION_PLACES,
    NotBuiltError,
    build,
)
from brim.phantom.elf import SharedObject, read_shared_object

_ENTRY = struct.Struct("<120sq")
_PLACE = "brim_absent_{:04o}_" + "x" * 56
_NUM_PLACES = 1024


def make_stand_ins(torch_folder: Path, target: Path) -> list[Path]:
    """Write the libraries that a job with this torch needs into a folder; return all to load before anything else.

    Raises:
        InputError: The driver cannot be compiled, or torch asks for more than can be stood in for.
    """
    built = _built()
    asked = read_asked(torch_folder)
    target.mkdir(parents=True, exist_ok=True)
    core = target / CORE
    core.write_bytes((built / CORE).read_bytes())
    known = read_shared_object(core)
    assert known is not None
    absent = target / "absent.so"
    absent.write_bytes(_absent((built / ABSENT).read_bytes(), asked.functions.difference(known.defined())))
    template = SharedObject((built / NAME).read_bytes())
    names = []
    for name, versions in sorted(asked.libraries.items()):
        # torch takes a file whose name holds "libcudart.so" for NVIDIA's, and would load others of theirs.
        path = target / f"{name.removeprefix('lib').replace('.so', '-')}.so"
        path.write_bytes(_named(template, name, sorted(versions)))
        names.append(path)
    _link_driver(target, core)
    return [core, absent, *names]


def _built() -> Path:
    """Return the folder of the compiled driver, compiled now where its sources lie and nobody did before."""
    if all((BUILT / each).is_file() for each in (CORE, NAME, ABSENT)):
        return BUILT
    try:
        build()
    except (NotBuiltError, OSError) as error:
        raise InputError(
            f"This brim was installed without its phantom GPU, and it cannot be compiled now: {error}. "
            "Install a C compiler and brim again, or use --engine trace."
        ) from error
    return BUILT


def _named(template: SharedObject, name: str, versions: list[str]) -> bytes:
    """Return an empty library with a name and the versions that are wanted of it."""
    if len(versions) > len(VERSION_PLACES):
        raise _too_much(f"{len(versions)} versions of {name}", len(VERSION_PLACES))
    unused = [f"unused_{index}" for index in range(len(VERSION_PLACES))]
    return template.rename({NAME_PLACE: name, **dict(zip(VERSION_PLACES, [*versions, *unused], strict=False))})


def _absent(template: bytes, functions: set[str]) -> bytes:
    """Return the library of functions that only say their names."""
    if len(functions) > _NUM_PLACES:
        raise _too_much(f"{len(functions)} functions that phantom GPUs do not have", _NUM_PLACES)
    names = {_PLACE.format(index): name for index, name in enumerate(sorted(functions))}
    made = bytearray(SharedObject(template).rename(names))
    table = SharedObject(template).offset_of("brim_absent")
    for index, name in enumerate(names.values()):
        _ENTRY.pack_into(made, table + index * _ENTRY.size, name.encode(), error_of(name))
    return bytes(made)


def _too_much(what: str, most: int) -> InputError:
    return InputError(
        f"This torch asks for {what}, and this brim has room for {most}. "
        "Use a newer brim, or `brim predict --engine trace`."
    )


def _link_driver(target: Path, core: Path) -> None:
    """Make the driver's name a file as well, for compilers that link with it."""
    folder = target / "driver"
    folder.mkdir(exist_ok=True)
    for name in ("libcuda.so.1", "libcuda.so"):
        link = folder / name
        if not link.exists():
            link.symlink_to(core)
