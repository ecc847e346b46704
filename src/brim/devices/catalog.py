"""GPUs that a job can be predicted for without having one.

`gpus.csv` holds them. Memory is what torch reports as `total_memory`, which is less than what is on the box: the
driver and, with ECC on, the error correction keep a part. It follows torch's own "total capacity" in public reports of
out-of-memory errors, and differs by some hundredths between drivers; not every card could be checked. The rest follows
the makers' data sheets (dense rates, without sparsity). Laptops run at the power that their makers allow, so the rates
of their cards are rough. `aliases` are other ways to write a name, such as what `torch.cuda.get_device_name` says.
"""

from __future__ import annotations

import csv
import difflib
import functools
import re
from dataclasses import dataclass
from importlib import resources

from brim.errors import InputError

_GIB = 2**30
# Vendors that are not NVIDIA, by architecture.
_AMD = ("GCN", "CDNA", "RDNA")
# Those of AMD for which torch has fused attention; for RDNA 3 and 4 it has to be asked by an environment variable.
# Source: `check_flash_attention_hardware_support` in torch's aten/src/ATen/native/transformers/cuda/sdp_utils.cpp.
_AMD_FUSED = ("CDNA 2", "CDNA 3", "CDNA 4")
# What has no memory of its own.
_SHARING = ("gb10",)
# Makers and brands, without which a name is the same.
_BRANDS = {"nvidia", "geforce", "tesla", "amd", "instinct", "radeon"}
# Families whose numbers are names by themselves.
_FAMILIES = ("rtx-", "gtx-", "rx-")
# What a name is made of: sizes, words, numbers and signs.
_PART = re.compile(r"\d+gb|[a-z]+|\d+|[^\sa-z\d_-]")
_SIZE = re.compile(r"\d+gb")
_NUM_NEAREST = 4
# How much a name has to resemble another to be told as near, by difflib's ratio.
_LEAST_ALIKE = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU of the catalog, or one that the user describes by its memory.

    Attributes:
        name: How it is called on the command line.
        memory_bytes: What torch reports as its total memory.
        capability: NVIDIA's compute capability, or AMD's architecture number.
        num_multiprocessors: Streaming multiprocessors of an NVIDIA GPU; None where unknown.
        bandwidth_bytes_per_second: Of its memory; None where unknown.
        fp32_flops: Peak rate in float32 without tensor cores; None where unknown.
        fp16_flops: Peak dense rate of tensor cores in float16 that add up in float32, as torch's matrix products do;
            on GeForce cards that is half of the rate that adds up in float16. Without tensor cores the plain rate;
            None where unknown.
    """

    name: str
    memory_bytes: int
    title: str = ""
    architecture: str = ""
    capability: tuple[int, int] = (8, 0)
    num_multiprocessors: int | None = None
    bandwidth_bytes_per_second: float | None = None
    fp32_flops: float | None = None
    fp16_flops: float | None = None

    def __post_init__(self) -> None:
        if type(self.memory_bytes) is not int or self.memory_bytes < 1:
            raise InputError(
                f"memory_bytes is {self.memory_bytes!r}. Use a whole number of bytes above 0, e.g. int(23.7 * 2**30)."
            )
        if not isinstance(self.capability, tuple) or [type(each) for each in self.capability] != [int, int]:
            raise InputError(f"capability is {self.capability!r}. Use two whole numbers, e.g. (8, 6).")

    @property
    def is_amd(self) -> bool:
        """Whether it runs ROCm instead of CUDA."""
        return self.architecture.startswith(_AMD)

    @property
    def has_fused_attention(self) -> bool:
        """Whether torch has attention for it that does not keep the scores."""
        return not self.is_amd or self.architecture in _AMD_FUSED

    @property
    def is_built_in(self) -> bool:
        """Whether it is part of a laptop or shares the memory of its host, so no card for another computer."""
        return "-laptop" in self.name or self.name in _SHARING


@functools.cache
def gpus() -> dict[str, Gpu]:
    """Return the catalog by name."""
    return {row["name"]: _from_row(row) for row in _rows()}


def find_gpu(name: str) -> Gpu:
    """Return the GPU that a name means for certain, however it is written.

    That is its name, its title or an alias, whatever the case, separators and brands, or its name without the family.

    >>> find_gpu("NVIDIA GeForce RTX 3090").name, find_gpu("rtx3090").name, find_gpu("4090").name
    ('rtx-3090', 'rtx-3090', 'rtx-4090')
    """
    wanted = _parts(name)
    found = {"".join(parts): known for parts, known in _spellings().items()}.get("".join(wanted))
    if found is not None:
        return gpus()[found]
    variants = _variants(wanted)
    if len(variants) > 1:
        instead = f": {', '.join(variants[:-1])} or {variants[-1]}?"
    else:
        near = ", ".join(_nearest(wanted))
        instead = f". Nearest: {near}." if near else "."
    raise InputError(
        f"There is no GPU {name!r} in the catalog{instead} `brim gpus` lists all; --memory 23.7GiB, in Python "
        "brim.Gpu(name=..., memory_bytes=...), describes any other."
    )


def _parts(name: str) -> tuple[str, ...]:
    """Return what a name is made of, without brands.

    >>> _parts("NVIDIA A100-SXM4-80GB")
    ('a', '100', 'sxm', '4', '80gb')
    """
    return tuple(part for part in _PART.findall(name.lower()) if part not in _BRANDS)


@functools.cache
def _spellings() -> dict[tuple[str, ...], str]:
    """Return the names of the catalog by the parts of every way to write them."""
    spellings = {}
    for row in _rows():
        name = row["name"]
        written = [name, row["title"], *filter(None, row["aliases"].split("|"))]
        written += [name.removeprefix(family) for family in _FAMILIES if name.startswith(family)]
        spellings.update({_parts(each): name for each in written})
    return spellings


def _variants(wanted: tuple[str, ...]) -> list[str]:
    """Return the names that begin with the wanted one; where some differ in nothing but a size, only those."""
    if _number(wanted) is None:
        return []
    begun = [(name, parts[len(wanted) :]) for parts, name in _spellings().items() if parts[: len(wanted)] == wanted]
    sized = [name for name, rest in begun if all(map(_SIZE.fullmatch, rest))]
    return list(dict.fromkeys(sized or [name for name, _ in begun]))


def _nearest(wanted: tuple[str, ...]) -> list[str]:
    """Return a few names that resemble the wanted one: with its family and number, else with its number, if any has."""
    number = _number(wanted)
    if number is not None:
        head = set(wanted[: wanted.index(number) + 1])
        related = [name for name in gpus() if head.issubset(_parts(name))]
        related = related or [name for name in gpus() if number in _parts(name)]
        if related:
            return sorted(related, key=lambda name: len(set(_parts(name)).difference(wanted)))[:_NUM_NEAREST]
    begun = [name for name in gpus() if wanted and name.replace("-", "").startswith("".join(wanted))]
    alike = difflib.get_close_matches("-".join(wanted), gpus(), n=_NUM_NEAREST, cutoff=_LEAST_ALIKE)
    return list(dict.fromkeys([*begun, *alike]))[:_NUM_NEAREST]


def _number(wanted: tuple[str, ...]) -> str | None:
    """Return the number of a model, which its memory is not."""
    return next((part for part in wanted if part.isdigit()), None)


@functools.cache
def _rows() -> list[dict[str, str]]:
    with resources.files("brim.devices").joinpath("gpus.csv").open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def _from_row(row: dict[str, str]) -> Gpu:
    major, minor = row["capability"].split(".")
    return Gpu(
        name=row["name"],
        title=row["title"],
        architecture=row["architecture"],
        memory_bytes=int(float(row["memory_gib"]) * _GIB),
        capability=(int(major), int(minor)),
        num_multiprocessors=int(row["multiprocessors"]) if row["multiprocessors"] else None,
        bandwidth_bytes_per_second=float(row["bandwidth_gb_per_second"]) * 1e9,
        fp32_flops=float(row["fp32_tflops"]) * 1e12,
        fp16_flops=float(row["fp16_tflops"]) * 1e12 if row["fp16_tflops"] else None,
    )
