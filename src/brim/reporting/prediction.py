"""Predictions and the catalog as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from brim.cases import Case
from brim.devices.catalog import Gpu
from brim.reporting.remarks import Searched
from brim.units import format_bytes

_BAR_WIDTH = 40
_NUM_MODULES = 10
_COLORS = {
    "parameters": "blue",
    "gradients": "cyan",
    "optimizer": "green",
    "activations": "magenta",
    "inputs": "yellow",
    "temporary": "red",
}


class Peak(Protocol):
    """The peaks of one microbatch."""

    @property
    def allocated_bytes(self) -> int:
        """What tensors hold."""
        ...

    @property
    def reserved_bytes(self) -> int:
        """What torch's allocator holds."""
        ...

    @property
    def device_bytes(self) -> int:
        """What is used on the device."""
        ...


class Predicted(Searched, Protocol):
    """What is shown of a prediction."""

    gpu: Gpu
    case: Case
    kind: str

    @property
    def interval(self) -> tuple[int, int]:
        """Bounds on the largest."""
        ...

    def shown_sizes(self) -> list[int]:
        """Return the sizes worth showing."""
        ...

    def peak(self, microbatch: int) -> Peak:
        """Return the peaks of a microbatch."""
        ...

    def breakdown(self, microbatch: int) -> Mapping[str, int]:
        """Return the bytes of every kind of memory at the peak."""
        ...

    def modules(self, microbatch: int) -> Mapping[str, int]:
        """Return the bytes that every module holds at the peak, most first."""
        ...

    def fits(self, microbatch: int) -> bool:
        """Return whether a microbatch fits."""
        ...

    def missing_bytes(self, microbatch: int = 1) -> int:
        """Return by how much a microbatch passes the device's memory."""
        ...

    def remedy(self, microbatch: int = 1) -> str | None:
        """Return the cheapest change that would make a microbatch fit."""
        ...


def answer_table(predictions: Sequence[Predicted]) -> Table:
    """Return the largest microbatch with its bounds: a row for every case, a column for every GPU."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("case")
    gpus = {prediction.gpu.name: prediction.gpu for prediction in predictions}
    for gpu in gpus.values():
        table.add_column(f"{escape(gpu.name)}\n{format_bytes(gpu.memory_bytes)}", justify="right")
    rows: dict[Case, list[Text]] = {}
    for prediction in predictions:
        rows.setdefault(prediction.case, []).append(_answer(prediction))
    for case, answers in rows.items():
        table.add_row(escape(str(case)), *answers)
    return table


def _answer(prediction: Predicted) -> Text:
    low, high = prediction.interval
    if not prediction.largest:
        return Text("nothing fits", "red")
    if prediction.stopped_by != "memory" and low == prediction.largest:
        return Text(f"≥ {prediction.largest:,}", "bold")
    return Text.assemble((f"{prediction.largest:,}", "bold"), f" ({low:,}–{high:,})")


def memory_table(prediction: Predicted, sizes: Sequence[int]) -> Table:
    """Return memory by kind as stacked bars, one row for every size."""
    limit_bytes = prediction.gpu.memory_bytes
    title = f"{prediction.gpu.name}, {format_bytes(limit_bytes)}" + (f", {prediction.case}" if prediction.case else "")
    table = Table(title=escape(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("microbatch", justify="right", style="bold")
    table.add_column("memory by kind")
    for name in ("allocated", "reserved", "on the device"):
        table.add_column(name, justify="right")
    table.add_column("")
    for size in sizes:
        peak = prediction.peak(size)
        table.add_row(
            f"{size:,}",
            stacked_bar(prediction.breakdown(size), peak.device_bytes, limit_bytes),
            format_bytes(peak.allocated_bytes),
            format_bytes(peak.reserved_bytes),
            format_bytes(peak.device_bytes),
            Text("fits", "green") if prediction.fits(size) else Text("does not fit", "red"),
        )
    return table


def legend(held: Mapping[str, int]) -> Text:
    """Return what the colours of a bar mean, with the bytes of each kind."""
    parts: list[Text | str] = []
    for kind, num_bytes in held.items():
        if num_bytes:
            parts += [Text("█ ", _COLORS[kind]), f"{kind} {format_bytes(num_bytes)}   "]
    return Text.assemble(*parts, Text("░ ", "dim"), "rounding, cached memory and the driver's context")


def modules_table(held: Mapping[str, int]) -> Table:
    """Return the modules that hold most at the peak."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("module")
    table.add_column("holds at the peak", justify="right")
    for name, num_bytes in list(held.items())[:_NUM_MODULES]:
        table.add_row(escape(name or "outside of modules"), format_bytes(num_bytes))
    return table


def stacked_bar(held: Mapping[str, int], device_bytes: int, limit_bytes: int) -> Text:
    """Return a bar whose full width is the device's memory."""
    bar = Text()
    num_cells = total = 0
    for kind, num_bytes in held.items():
        total += num_bytes
        cells = min(_BAR_WIDTH, round(total / limit_bytes * _BAR_WIDTH)) - num_cells
        bar.append("█" * cells, _COLORS[kind])
        num_cells += cells
    rest = min(_BAR_WIDTH, round(device_bytes / limit_bytes * _BAR_WIDTH)) - num_cells
    bar.append("░" * max(0, rest), "dim")
    bar.append(" " * (_BAR_WIDTH - num_cells - max(0, rest)))
    return bar.append(f" {device_bytes / limit_bytes:4.0%}")


def gpus_table(gpus: Sequence[Gpu]) -> Table:
    """Return the catalog."""
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("name", "GPU", "architecture"):
        table.add_column(name)
    for name in ("memory", "capability", "bandwidth", "float32", "float16"):
        table.add_column(name, justify="right")
    for gpu in gpus:
        table.add_row(
            gpu.name,
            gpu.title,
            gpu.architecture,
            format_bytes(gpu.memory_bytes),
            f"{gpu.capability[0]}.{gpu.capability[1]}",
            f"{(gpu.bandwidth_bytes_per_second or 0) / 1e9:,.0f} GB/s",
            f"{(gpu.fp32_flops or 0) / 1e12:,.1f} TFLOPS",
            "" if gpu.fp16_flops is None else f"{gpu.fp16_flops / 1e12:,.0f} TFLOPS",
        )
    return table
