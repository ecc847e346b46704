"""Ask cuDNN itself, without a GPU, what it chooses for the gradient of the weights of 1 × 1 convolutions.

From 9.8 on its heuristics take the description of a device in place of one. Of the engine that they name first for an
RTX 3060 (float32, NCHW) the workspace is written down, and whether it is that of one matrix product for every sample;
and, by bisection, the batches after which that changes. cuBLASLt is a stand-in (`cublaslt_stand_in.c`).

Repeatable are answers that are the same in both orders of asking and in two processes. A process describes one device
only: once cuDNN has considered an engine of cuBLASLt for a device without TF32, engines with TF32 are missing from all
later answers, whatever is described then. How many that changes is counted in a process that is misled on purpose.

    make benchmark-cudnn
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.table import Table

from report import make_console

HERE = Path(__file__).resolve().parent
OUT = HERE / "results" / "cudnn.json"
CUDNN = Path(sys.prefix) / "cudnn" / "nvidia" / "cudnn"
CUBLASLT = "libcublasLt.so.12"
# Input channels, output channels, and the height, which is the width as well.
LAYERS = (
    *((576, 96, 3), (576, 160, 3), (320, 1280, 3), (400, 400, 3), (512, 2048, 3)),
    *((576, 96, 6), (576, 96, 7), (576, 96, 11)),
    *((400, 64, 3), (592, 160, 3), (384, 96, 3), (640, 96, 3), (576, 192, 3)),  # the corners of where it is chosen
)
BATCHES = (32, 64, 128, 200, 256, 323, 370, 371, 377, 512)
# A change is looked for between neighbours among these that are answered differently.
LADDER = [2**power for power in range(14)]
FLOAT32_BYTES = 4
PRODUCT = "is_product_per_sample"
# What torch says of its tensors, whose memory begins at multiples of 512.
ALIGNMENT_BYTES = 32
CAPABILITY, CAPABILITY_WITHOUT_TF32 = "8.6", "7.0"
# Answered with an engine of cuBLASLt where there is no TF32.
MISLEADING_QUESTION = (64, 64, 3), 32
RTX_3060 = """{
    "deviceName": "NVIDIA GeForce RTX 3060", "multiProcessorCount": 28, "warpSize": 32, "l2CacheSize": 3145728,
    "maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": 101376, "reservedSharedMemoryPerBlock": 1024,
    "maxRegistersPerSM": 65536, "regsPerBlock": 65536, "maxCtasPerSM": 16, "maxThreadsPerSM": 1536,
    "maxThreadsPerBlock": 1024, "maxBlockSize": [1024, 1024, 64], "maxGridSize": [2147483647, 65535, 65535],
    "totalGlobalMem": 12622233600, "smClockRateKHz": 1777000, "memClockRateKHz": 7501000, "memoryBusWidth": 192,
    "supportCoopLaunch": 1, "pciDeviceId": 0, "isTccDriver": 0, "cudaDeviceId": 0, "driverVer": 12040
}"""
DESCRIPTOR = "BACKEND_DESCRIPTOR"
FLOAT32 = ("DATA_TYPE", "DATA_FLOAT")
C_TYPES: dict[str, Any] = {"INT64": ctypes.c_int64, "FLOAT": ctypes.c_float, "CHAR": ctypes.c_char}
C_TYPES[DESCRIPTOR] = ctypes.c_void_p  # and those of all others are C's enumerations


class Cudnn:
    """cuDNN's backend, with the constants of its public header, cudnn_graph.h, by their names less `CUDNN_`.

    Descriptors are not destroyed: a process asks some hundred questions and ends.
    """

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            stand_in, source = Path(folder) / CUBLASLT, HERE / "cublaslt_stand_in.c"
            subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{CUBLASLT}", "-o", stand_in, source], check=True)
            ctypes.CDLL(str(stand_in))  # cuDNN opens it by its name, and gets the one that is loaded
        header = (CUDNN / "include" / "cudnn_graph.h").read_text()
        self._values = {name: int(value) for name, value in re.findall(r"\bCUDNN_(\w+)\s*=\s*(\d+)", header)}
        self._library = ctypes.CDLL(str(CUDNN / "lib" / "libcudnn.so.9"))
        version = self._library.cudnnGetVersion()
        self.version = f"{version // 10000}.{version // 100 % 100}.{version % 100}"

    def create(self, kind: str) -> ctypes.c_void_p:
        """Return a descriptor without attributes."""
        descriptor = ctypes.c_void_p()
        self._call("CreateDescriptor", f"BACKEND_{kind}_DESCRIPTOR", ctypes.byref(descriptor))
        return descriptor

    def make(self, kind: str, **attributes: tuple[Any, ...]) -> ctypes.c_void_p:
        """Return a descriptor with attributes, each of which is the name of its type and its values."""
        descriptor = self.create(kind)
        for name, (type_name, *values) in attributes.items():
            numbers = [self._values[value] if isinstance(value, str) else value for value in values]
            array = (C_TYPES.get(type_name, ctypes.c_int) * len(values))(*numbers)
            attribute = f"ATTR_{kind.replace('BACKWARD', 'BWD')}_{name}"
            self._call("SetAttribute", descriptor, attribute, f"TYPE_{type_name}", ctypes.c_int64(len(values)), array)
        self._call("Finalize", descriptor)
        return descriptor

    def read(self, descriptor: ctypes.c_void_p, attribute: str, type_name: str, into: Any) -> Any:
        """Return `into` with the first value of an attribute."""
        place = (f"ATTR_{attribute}", f"TYPE_{type_name}", ctypes.c_int64(1), ctypes.byref(ctypes.c_int64()))
        self._call("GetAttribute", descriptor, *place, ctypes.byref(into))
        return into

    def _call(self, name: str, *arguments: Any) -> None:
        numbers = [self._values[argument] if isinstance(argument, str) else argument for argument in arguments]
        if getattr(self._library, f"cudnnBackend{name}")(*numbers):
            said = ctypes.create_string_buffer(1024)
            self._library.cudnnGetLastErrorString(said, ctypes.c_size_t(len(said)))
            raise RuntimeError(f"cudnnBackend{name} failed: {said.value.decode(errors='replace').strip()}")


def make_device(cudnn: Cudnn, capability: str) -> ctypes.c_void_p:
    """Return the description of an RTX 3060, or of what it would be with another capability."""
    text = json.dumps({**json.loads(RTX_3060), "deviceVer": int(capability.replace(".", "")) * 10})
    return cudnn.make("DEVICEPROP", JSON_REPRESENTATION=("CHAR", *text.encode()))


def make_tensor(cudnn: Cudnn, unique_id: int, rows: int, channels: int, side: int) -> ctypes.c_void_p:
    """Return a contiguous tensor of float32."""
    return cudnn.make(
        "TENSOR",
        DATA_TYPE=FLOAT32,
        DIMENSIONS=("INT64", rows, channels, side, side),
        STRIDES=("INT64", channels * side * side, side * side, side, 1),
        UNIQUE_ID=("INT64", unique_id),
        BYTE_ALIGNMENT=("INT64", ALIGNMENT_BYTES),
    )


def make_graph(cudnn: Cudnn, inputs: int, outputs: int, side: int, batch: int) -> ctypes.c_void_p:
    """Return the gradient of the weights of a 1 × 1 convolution as a graph of one operation."""
    ones, zeros = ("INT64", 1, 1), ("INT64", 0, 0)
    padding = {"PRE_PADDINGS": zeros, "POST_PADDINGS": zeros}
    mode = {"SPATIAL_DIMS": ("INT64", 2), "CONV_MODE": ("CONVOLUTION_MODE", "CROSS_CORRELATION"), "COMP_TYPE": FLOAT32}
    convolution = cudnn.make("CONVOLUTION", DILATIONS=ones, FILTER_STRIDES=ones, **padding, **mode)
    operation = cudnn.make(
        "OPERATION_CONVOLUTION_BACKWARD_FILTER",
        CONV_DESC=(DESCRIPTOR, convolution),
        X=(DESCRIPTOR, make_tensor(cudnn, 1, batch, inputs, side)),
        DY=(DESCRIPTOR, make_tensor(cudnn, 2, batch, outputs, side)),
        DW=(DESCRIPTOR, make_tensor(cudnn, 3, outputs, inputs, 1)),
        ALPHA=("FLOAT", 1),
        BETA=("FLOAT", 0),
    )
    return cudnn.make("OPERATIONGRAPH", OPS=(DESCRIPTOR, operation))


def choose(cudnn: Cudnn, device: ctypes.c_void_p, layer: tuple[int, int, int], batch: int) -> dict[str, Any]:
    """Return what the heuristics name first, in the mode in which torch asks them."""
    inputs, outputs, side = layer
    graph, described = make_graph(cudnn, inputs, outputs, side, batch), (DESCRIPTOR, device)
    mode = ("HEUR_MODE", "HEUR_MODE_INSTANT")
    heuristics = cudnn.make("ENGINEHEUR", OPERATION_GRAPH=(DESCRIPTOR, graph), MODE=mode, DEVICEPROP=described)
    config = cudnn.read(heuristics, "ENGINEHEUR_RESULTS", DESCRIPTOR, cudnn.create("ENGINECFG"))
    engine = cudnn.read(config, "ENGINECFG_ENGINE", DESCRIPTOR, cudnn.create("ENGINE"))
    plan = cudnn.make("EXECUTION_PLAN", ENGINE_CONFIG=(DESCRIPTOR, config), DEVICEPROP=described)
    workspace_bytes = cudnn.read(plan, "EXECUTION_PLAN_WORKSPACE_SIZE", "INT64", ctypes.c_int64()).value
    return {
        "cudnn": cudnn.version,
        "capability": CAPABILITY,
        "inputs": inputs,
        "outputs": outputs,
        "pixels": side * side,
        "batch": batch,
        "engine": cudnn.read(engine, "ENGINE_GLOBAL_INDEX", "INT64", ctypes.c_int64()).value,
        "workspace_bytes": workspace_bytes,
        PRODUCT: workspace_bytes == batch * inputs * outputs * FLOAT32_BYTES,
    }


def find_changes(is_product: Callable[[int], bool]) -> list[int]:
    """Return the last batches before the answer changes."""
    lasts = []
    for low, high in pairwise(LADDER):
        before = is_product(low)
        if is_product(high) != before:
            changed = bisect_left(range(low, high), True, key=lambda batch, before=before: is_product(batch) != before)
            lasts.append(low + changed - 1)
    return lasts


def answer(first_capability: str) -> dict[str, Any]:
    """Ask everything, the rows in both orders, with `first_capability` as the first that this process describes."""
    cudnn = Cudnn()
    choose(cudnn, make_device(cudnn, first_capability), *MISLEADING_QUESTION)
    ask = partial(choose, cudnn, make_device(cudnn, CAPABILITY))
    questions = [(layer, batch) for layer in LAYERS for batch in BATCHES]
    rows = [ask(*question) for question in questions]
    again = [ask(*question) for question in reversed(questions)]
    layers = []
    for layer in LAYERS:
        inputs, outputs, pixels = *layer[:2], layer[2] ** 2
        lasts = find_changes(lambda batch, layer=layer: ask(layer, batch)[PRODUCT])
        changes = [{"batch": last, "num_terms": last * pixels, PRODUCT: ask(layer, last)[PRODUCT]} for last in lasts]
        layers.append({"inputs": inputs, "outputs": outputs, "pixels": pixels, "last_before_change": changes})
    return {"is_repeatable": rows == again[::-1], "rows": rows, "layers": layers}


def answer_in_process(first_capability: str) -> dict[str, Any]:
    """Ask everything in a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(answer, first_capability).result()


def print_table(document: dict[str, Any]) -> None:
    """Print a line for each layer, with an asterisk at every product per sample."""

    def marked(rows: list[dict[str, Any]], name: str) -> list[str]:
        return [f"{row[name]}{'*' if row[PRODUCT] else ''}" for row in rows]

    table = Table("weights", "pixels", *map(str, BATCHES), "last before a change", title="The engine by batch")
    for number, (inputs, outputs, side) in enumerate(LAYERS):
        engines = marked(document["rows"][number * len(BATCHES) : (number + 1) * len(BATCHES)], "engine")
        lasts = marked(document["layers"][number]["last_before_change"], "batch")
        table.add_row(f"{inputs} → {outputs}", f"{side} × {side}", *engines, ", ".join(lasts))
    make_console().print(table)


def main() -> None:
    """Ask in three processes, print the first one's answers and write them with what the others say of them."""
    if not CUDNN.is_dir():
        sys.exit(f"There is no cuDNN in {CUDNN}. Install it and ask it with: make benchmark-cudnn")
    answers, again = answer_in_process(CAPABILITY), answer_in_process(CAPABILITY)
    misled = answer_in_process(CAPABILITY_WITHOUT_TF32)

    def count_others(part: str, name: str) -> int:
        return sum(one[name] != other[name] for one, other in zip(answers[part], misled[part], strict=True))

    is_repeatable = answers["is_repeatable"] and answers == again
    others = {
        "num_rows_with_another_engine": count_others("rows", "engine"),
        f"num_rows_with_another_{PRODUCT}": count_others("rows", PRODUCT),
        "num_layers_with_another_change": count_others("layers", "last_before_change"),
    }
    print_table(answers)
    print(f"Repeatable: {is_repeatable}. After a description of {CAPABILITY_WITHOUT_TF32}: {others}")
    document = {**answers, "is_repeatable": is_repeatable, "misled": {"by": CAPABILITY_WITHOUT_TF32, **others}}
    OUT.write_text(json.dumps(document, indent=1) + "\n")
    print(f"Written: {OUT.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
