"""What an installed torch, and the packages beside it, ask of CUDA: libraries, their versions, and functions."""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from brim.phantom.elf import SharedObject, libraries_in, read_shared_object

# Names of CUDA's libraries, also as wheels rename them that carry a copy.
_NAME = r"lib({})([-.][0-9a-f]{{8,}})?\.so(\.[\d.]+)?"
_LIBRARY = re.compile(
    _NAME.format(
        r"cuda|cudart|cublas|cublasLt|cudnn\w*|cufft\w*|cufile\w*|cupti|curand|cusolver\w*|cusparse\w*|nccl|nvidia-ml"
        r"|nvJitLink|nvjpeg|nvrtc[\w-]*|nvshmem\w*|nvToolsExt|nvtx\w*|npp\w*|nvcuvid|nvidia-encode"
    )
)
# Perhaps a newer one, where it is not installed.
_NEWER_LIBRARY = re.compile(_NAME.format(r"(cu|nv)\w+"))
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
    r"nvjpeg[A-Z]": 9,
    r"nvml": 3,
    r"nvtx": 0,
}
_ANY_ERROR = 1
_FUNCTION = re.compile("|".join(f"(?:{pattern})" for pattern in _NOT_SUPPORTED))
# Asked for by name at run time, by whoever looks for a driver.
_ALWAYS = ("libcuda.so.1", "libnvidia-ml.so.1")
# What Triton compiles on first use and links with the driver, and how it calls it.
_COMPILED_LATER = "triton/backends/nvidia/driver.*"
_CALL = re.compile(r"\b(cu[A-Z]\w+) *\(")
# Here torch keeps the names of functions that it looks for at run time, each on its own.
_LOOKS_BY_NAME = "lib/libc10_cuda.so"
_TEXT = re.compile(rb"\0((?:cu|nvml)[A-Z]\w+)(?=\0)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked of CUDA.

    Attributes:
        libraries: The versions of symbols that are wanted of each library, by its name.
        functions: All that are called, or looked for.
    """

    libraries: dict[str, set[str]]
    functions: set[str]


def read_asked(torch_folder: Path) -> Asked:
    """Return what the files of torch, and of packages beside it, ask for."""
    asked = Asked(libraries={name: set() for name in _ALWAYS}, functions=set())
    others = list(_installed_libraries(torch_folder.parent))
    known = {path.name for path in (*others, *(torch_folder / "lib").glob("*.so*"))}
    for library in _asking(torch_folder, others):
        names = [name for name in library.needed if _is_cuda(name, known)]
        for name in names:
            asked.libraries.setdefault(name, set()).update(library.needed_versions.get(name, ()))
        stems = tuple(name[3:].partition(".so")[0] for name in names)
        for function, origin in library.wanted():
            if origin in names or (origin is None and (_FUNCTION.match(function) or function.startswith(stems))):
                asked.functions.add(function)
    for path in torch_folder.parent.glob(_COMPILED_LATER):
        asked.functions.update(_CALL.findall(path.read_text(encoding="utf-8")))
    if (torch_folder / _LOOKS_BY_NAME).is_file():
        found = _TEXT.findall((torch_folder / _LOOKS_BY_NAME).read_bytes())
        asked.functions.update(name.decode() for name in found)
    return asked


def error_of(function: str) -> int:
    """Return what a function returns that phantoms do not have."""
    return next((error for pattern, error in _NOT_SUPPORTED.items() if re.match(pattern, function)), _ANY_ERROR)


def _is_cuda(library: str, known: Collection[str]) -> bool:
    """Return whether a library is one of CUDA's; what is called like one is too, unless somebody else has it."""
    if _LIBRARY.fullmatch(library):
        return True
    newer = _NEWER_LIBRARY.fullmatch(library)
    return newer is not None and library not in known and ctypes.util.find_library(newer[1]) is None


def _asking(torch_folder: Path, others: Iterable[Path]) -> Iterator[SharedObject]:
    """Yield the libraries of torch, and others that ask for CUDA."""
    yield from libraries_in([torch_folder / "lib", torch_folder])
    for path in others:
        library = read_shared_object(path)
        if library is not None and any(map(_LIBRARY.fullmatch, library.needed)):
            yield library


def _installed_libraries(site: Path) -> Iterable[Path]:
    for distribution in importlib.metadata.distributions(path=[str(site)]):
        for line in (distribution.read_text("RECORD") or "").splitlines():
            name = line.partition(",")[0]
            if ".so" in name and not name.startswith(("torch/", "nvidia/")) and re.search(r"\.so(\.\d+)*$", name):
                yield site / name
