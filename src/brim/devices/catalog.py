"""GPUs that a job can be predicted for without having one.

`gpus.csv` holds them. Memory is what torch reports as `total_memory`, which is less than what is on the box: the
driver and, with ECC on, the error correction keep a part. It follows torch's own "total capacity" in public reports of
out-of-memory errors, and differs by some hundredths between drivers; not every card could be checked. The rest follows
the makers' data sheets (dense rates, without sparsity).
"""

from __future__ import annotations

import csv
import difflib
import functools
from dataclasses import dataclass
from importlib import resources

from brim.errors import InputError

_GIB = 2**30
# Vendors that are not NVIDIA, by architecture.
_AMD = ("CDNA", "RDNA")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU of the catalog, or one that the user describes by its memory.

    Attributes:
        name: How it is called on the command line.
        memory_bytes: What torch reports as its total memory.
        capability: NVIDIA's compute capability, or AMD's architecture number.
        bandwidth_bytes_per_second: Of its memory; None where unknown.
        fp32_flops: Peak rate in float32 without tensor cores; None where unknown.
        fp16_flops: Peak dense rate in float16 or bfloat16; None where unknown.
    """

    name: str
    memory_bytes: int
    title: str = ""
    architecture: str = ""
    capability: tuple[int, int] = (8, 0)
    bandwidth_bytes_per_second: float | None = None
    fp32_flops: float | None = None
    fp16_flops: float | None = None

    @property
    def is_amd(self) -> bool:
        """Whether it runs ROCm instead of CUDA."""
        return self.architecture.startswith(_AMD)


@functools.cache
def gpus() -> dict[str, Gpu]:
    """Return the catalog by name."""
    with resources.files("brim.devices").joinpath("gpus.csv").open(encoding="utf-8") as lines:
        return {row["name"]: _from_row(row) for row in csv.DictReader(lines)}


def find_gpu(name: str) -> Gpu:
    """Return the GPU of that name, however it is written, or of the one name that holds it.

    >>> find_gpu("RTX 3090").name, find_gpu("rtx3090").name, find_gpu("4090").name
    ('rtx-3090', 'rtx-3090', 'rtx-4090')
    """
    wanted = name.strip().lower().replace(" ", "-").replace("_", "-")
    for prefix in ("nvidia-", "geforce-", "tesla-", "quadro-", "amd-", "instinct-", "radeon-"):
        wanted = wanted.removeprefix(prefix)
    found = gpus().get(wanted) or _only_one(wanted)
    if found is not None:
        return found
    same = [known for known in gpus() if wanted and wanted in known]
    near = list(dict.fromkeys([*same, *difflib.get_close_matches(wanted, gpus(), n=3, cutoff=0.0)]))[:3]
    raise InputError(
        f"There is no GPU {name!r} in the catalog. Nearest: {', '.join(near)}. `brim gpus` lists all; --memory 23.7GiB "
        "describes any other."
    )


def _only_one(wanted: str) -> Gpu | None:
    """Return the GPU whose name is the wanted one but for dashes, else the only one whose name ends or starts so."""
    bare = wanted.replace("-", "")
    names = {known.replace("-", ""): gpu for known, gpu in gpus().items()}
    if bare in names:
        return names[bare]
    alike = [gpu for known, gpu in names.items() if known.endswith(bare) or known.startswith(bare)]
    return alike[0] if len(alike) == 1 and any(each.isdigit() for each in bare) else None


def _from_row(row: dict[str, str]) -> Gpu:
    major, minor = row["capability"].split(".")
    return Gpu(
        name=row["name"],
        title=row["title"],
        architecture=row["architecture"],
        memory_bytes=int(float(row["memory_gib"]) * _GIB),
        capability=(int(major), int(minor)),
        bandwidth_bytes_per_second=float(row["bandwidth_gb_per_second"]) * 1e9,
        fp32_flops=float(row["fp32_tflops"]) * 1e12,
        fp16_flops=float(row["fp16_tflops"]) * 1e12 if row["fp16_tflops"] else None,
    )
