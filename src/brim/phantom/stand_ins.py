"""Libraries that stand in for those of CUDA: empty ones with the names that torch asks for, one for what is missing.

The dynamic linker takes a library that is loaded already for any of the same name. So an empty library with the right
name and version comes first, and the driver has the functions. Functions that it does not have are those of a third
library: each says its name when it is called.
"""

from __future__ import annotations

import importlib.metadata
import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from brim.errors import InputError
from brim.phantom.build import ABSENT, BUILT, CORE, NAME, NAME_PLACE, VERSION_PLACE, NotBuiltError, build
from brim.phantom.elf import SharedObject, libraries_in, read_shared_object

# Names of CUDA's libraries, also as wheels rename them that carry a copy.
_LIBRARY = re.compile(
    r"lib(cuda|cudart|cublas|cublasLt|cudnn\w*|cufft\w*|cufile\w*|cupti|curand|cusolver\w*|cusparse\w*|nccl|nvidia-ml"
    r"|nvJitLink|nvrtc[\w-]*|nvshmem\w*|nvToolsExt|nvtx\w*)([-.][0-9a-f]{8,})?\.so(\.[\d.]+)?"
)
# Their functions; what each library calls "not supported", or an error where it has no word for that.
_NOT_SUPPORTED = {
    r"(__)?cuda[A-Z]": 801,
    r"cu[A-Z]": 801,
    r"cublas": 15,
    r"cudnn": 3000,
    r"cufft": 16,
    r"cuFile": 5001,
    r"cupti": 27,
    r"curand": 999,
    r"cusolver": 9,
    r"cusparse": 10,
    r"nccl": 3,
    r"nvJitLink|nvrtc|nvshmem\w*": 1,
    r"nvml": 3,
    r"nvtx": 0,
}
_FUNCTION = re.compile("|".join(f"(?:{pattern})" for pattern in _NOT_SUPPORTED))
# What Triton compiles on first use and links with the driver, and how it calls it.
_COMPILED_LATER = "triton/backends/nvidia/driver.*"
_CALL = re.compile(r"\b(cu[A-Z]\w+) *\(")
# Asked for by name at run time, by whoever looks for a driver.
_ALWAYS = ("libcuda.so.1", "libnvidia-ml.so.1")
_ENTRY = struct.Struct("<120sq")
_PLACE = "brim_absent_{:04o}_" + "x" * 56
_NUM_PLACES = 1024


def make_stand_ins(torch_folder: Path, target: Path) -> list[Path]:
    """Write the libraries that a job with this torch needs into a folder; return all to load before anything else."""
    built = _built()
    wanted: dict[str, set[str]] = {name: set() for name in _ALWAYS}
    functions: set[str] = set()
    for library in _asking(torch_folder):
        for name in filter(_LIBRARY.fullmatch, library.needed):
            wanted.setdefault(name, set()).update(library.needed_versions.get(name, ()))
        functions.update(filter(_FUNCTION.match, library.symbols(defined=False)))
    for path in torch_folder.parent.glob(_COMPILED_LATER):
        functions.update(_CALL.findall(path.read_text(encoding="utf-8")))
    target.mkdir(parents=True, exist_ok=True)
    core = target / CORE
    core.write_bytes((built / CORE).read_bytes())
    absent = target / "absent.so"
    known = read_shared_object(core)
    assert known is not None
    absent.write_bytes(_absent((built / ABSENT).read_bytes(), functions.difference(known.symbols(defined=True))))
    template = SharedObject((built / NAME).read_bytes())
    names = []
    for name, versions in sorted(wanted.items()):
        # torch takes a file whose name holds "libcudart.so" for NVIDIA's, and would load others of theirs.
        path = target / f"{name.removeprefix('lib').replace('.so', '-')}.so"
        version = min(versions, default=name)
        path.write_bytes(template.rename({NAME_PLACE: name, VERSION_PLACE: version}))
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


def _asking(torch_folder: Path) -> Iterator[SharedObject]:
    """Yield the libraries of torch, and of packages beside it, that ask for CUDA."""
    yield from libraries_in([torch_folder / "lib", torch_folder])
    for path in _installed_libraries(torch_folder.parent):
        library = read_shared_object(path)
        if library is not None and any(map(_LIBRARY.fullmatch, library.needed)):
            yield library


def _installed_libraries(site: Path) -> Iterable[Path]:
    for distribution in importlib.metadata.distributions(path=[str(site)]):
        for line in (distribution.read_text("RECORD") or "").splitlines():
            name = line.partition(",")[0]
            if ".so" in name and not name.startswith(("torch/", "nvidia/")) and re.search(r"\.so(\.\d+)*$", name):
                yield site / name


def _absent(template: bytes, functions: set[str]) -> bytes:
    """Return the library of functions that only say their names."""
    # More than there are places for would be a CUDA of another kind.
    names = {_PLACE.format(index): name for index, name in enumerate(sorted(functions)[:_NUM_PLACES])}
    made = bytearray(SharedObject(template).rename(names))
    table = SharedObject(template).offset_of("brim_absent")
    for index, name in enumerate(names.values()):
        _ENTRY.pack_into(made, table + index * _ENTRY.size, name.encode(), _error_of(name))
    return bytes(made)


def _error_of(function: str) -> int:
    return next(error for pattern, error in _NOT_SUPPORTED.items() if re.match(pattern, function))


def _link_driver(target: Path, core: Path) -> None:
    """Make the driver's name a file as well, for compilers that link with it."""
    folder = target / "driver"
    folder.mkdir(exist_ok=True)
    for name in ("libcuda.so.1", "libcuda.so"):
        link = folder / name
        if not link.exists():
            link.symlink_to(core)
