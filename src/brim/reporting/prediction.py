"""Predictions and the catalog as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from brim.cases import Case
from brim.devices.catalog import Gpu
from brim.errors import InputError
from brim.reporting.remarks import Searched
from brim.units import format_bytes, parse_bytes

_BAR_WIDTH = 40
_LEAST_BAR_WIDTH = 9
# From this many columns on a terminal shows all of the memory table; narrower ones do without the allocator's share.
_WHOLE_WIDTH = 120
# How many columns the rest of the table takes beside the bar, at most.
_BESIDE_BAR = 90
_BESIDE_NARROW_BAR = 66
# Below it, a verdict in full would be broken.
_VERDICT_WIDTH = 78
_COLORS = {
    "parameters": "blue",
    "gradients": "cyan",
    "optimizer": "green",
    "activations": "magenta",
    "inputs": "yellow",
    "temporary": "red",
}
# What tells the kinds apart where there are no colours.
_BLOCKS = {
    "parameters": "█",
    "gradients": "▓",
    "optimizer": "▒",
    "activations": "▞",
    "inputs": "▄",
    "temporary": "▀",
}
_REST = "░"
# Headings of the catalog on a narrow terminal, with units that its rows leave out.
_BRIEF = {"capability": "sm", "float32": "fp32 TFLOPS", "float16": "fp16"}


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


class Shown(Protocol):
    """What tables show of a prediction, whichever engine made it."""

    @property
    def gpu(self) -> Gpu:
        """The GPU that it is for."""
        ...

    @property
    def case(self) -> Case:
        """The setting of the input shape."""
        ...

    @property
    def kind(self) -> str:
        """What a step does."""
        ...

    @property
    def largest(self) -> int:
        """The largest microbatch that fits."""
        ...

    @property
    def stopped_by(self) -> str:
        """What ended the search."""
        ...

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

    def largest_modules(self, microbatch: int) -> Mapping[str, int]:
        """Return the bytes that the modules hold which hold most at the peak, most first."""
        ...

    def fits(self, microbatch: int) -> bool:
        """Return whether a microbatch fits."""
        ...

    def is_fragmented(self, microbatch: int) -> bool:
        """Return whether a microbatch does not fit although its tensors alone would."""
        ...


class Predicted(Searched, Shown, Protocol):
    """What is shown of a prediction by a trace."""

    def missing_bytes(self, microbatch: int = 1) -> int:
        """Return by how much a microbatch passes the device's memory."""
        ...

    def to_dict(self, workload: str, *, microbatch: int | None = None) -> dict[str, Any]:
        """Return the document `brim.prediction/1`."""
        ...

    def remedy(self, microbatch: int = 1) -> str | None:
        """Return the cheapest change that would make a microbatch fit."""
        ...


def answer_table(predictions: Sequence[Shown], *, microbatch: int | None = None) -> Table:
    """Return the largest microbatch with its bounds, or whether one fits: a row for every case, a column a GPU."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("case")
    gpus = {prediction.gpu.name: prediction.gpu for prediction in predictions}
    for gpu in gpus.values():
        table.add_column(escape("\n".join(gpu_headings(gpu))), justify="right")
    rows: dict[Case, list[Text]] = {}
    for prediction in predictions:
        told = _answer(prediction) if microbatch is None else _fit(prediction, microbatch)
        rows.setdefault(prediction.case, []).append(told)
    for case, answers in rows.items():
        table.add_row(escape(str(case)), *answers)
    return table


def gpu_headings(gpu: Gpu) -> tuple[str, ...]:
    """Return a GPU's name and memory; one that is only described by its memory has no other name."""
    memory = format_bytes(gpu.memory_bytes)
    try:
        return (memory,) if parse_bytes(gpu.name) == gpu.memory_bytes else (gpu.name, memory)
    except InputError:
        return gpu.name, memory


def _answer(prediction: Shown) -> Text:
    low, high = prediction.interval
    if not prediction.largest:
        return Text("nothing fits", "red")
    if prediction.stopped_by != "memory" and low == prediction.largest:
        return Text(f"≥ {prediction.largest:,}", "bold")
    return Text.assemble((f"{prediction.largest:,}", "bold"), f" ({low:,}–{high:,})")


def _fit(prediction: Shown, microbatch: int) -> Text:
    needed = format_bytes(prediction.peak(microbatch).device_bytes)
    return Text.assemble(_verdict(prediction, microbatch), f", {needed}")


def _verdict(prediction: Shown, microbatch: int, *, is_brief: bool = False) -> Text:
    if prediction.fits(microbatch):
        return Text("fits", "green")
    if prediction.is_fragmented(microbatch):
        return Text("fragmented" if is_brief else "does not fit: fragmented", "red")
    return Text("too large" if is_brief else "does not fit", "red")


def memory_table(
    prediction: Shown, sizes: Sequence[int], *, has_colors: bool = True, width: int = _WHOLE_WIDTH
) -> Table:
    """Return memory by kind as stacked bars, one row for every size, as wide as a terminal allows."""
    is_whole = width >= _WHOLE_WIDTH
    bar_width = min(_BAR_WIDTH, max(_LEAST_BAR_WIDTH, width - (_BESIDE_BAR if is_whole else _BESIDE_NARROW_BAR)))
    limit_bytes = prediction.gpu.memory_bytes
    title = ", ".join((*gpu_headings(prediction.gpu), *([str(prediction.case)] if prediction.case else [])))
    table = Table(title=escape(title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("microbatch", justify="right", style="bold")
    table.add_column("memory by kind", no_wrap=True)
    for name in ("allocated", "reserved", "on the device") if is_whole else ("on the device",):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for size in sizes:
        peak = prediction.peak(size)
        table.add_row(
            f"{size:,}",
            stacked_bar(
                prediction.breakdown(size), peak.device_bytes, limit_bytes, has_colors=has_colors, width=bar_width
            ),
            *([format_bytes(peak.allocated_bytes), format_bytes(peak.reserved_bytes)] if is_whole else []),
            format_bytes(peak.device_bytes),
            _verdict(prediction, size, is_brief=width < _VERDICT_WIDTH),
        )
    return table


def legend(held: Mapping[str, int], when: str, *, has_colors: bool = True) -> Text:
    """Return what the parts of a bar mean, with the bytes of each kind; `when` says at what."""
    parts: list[Text | str] = [f"{when}: "]
    for kind, num_bytes in held.items():
        if num_bytes:
            parts += [Text(f"{_block(kind, has_colors)} ", _COLORS[kind]), f"{kind} {format_bytes(num_bytes)}   "]
    return Text.assemble(
        *parts, Text(f"{_REST} ", "dim"), "rounding, workspaces, cached memory and the driver's context"
    )


def modules_table(held: Mapping[str, int], heading: str, *, total_bytes: int) -> Table:
    """Return the modules that hold most, and what all others hold together; the heading says when."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("module")
    table.add_column(heading, justify="right")
    for name, num_bytes in held.items():
        table.add_row(escape(name), format_bytes(num_bytes))
    others_bytes = total_bytes - sum(held.values())
    if others_bytes > 0:
        table.add_row(Text("(all others)", "dim"), format_bytes(others_bytes))
    return table


def stacked_bar(
    held: Mapping[str, int],
    device_bytes: int,
    limit_bytes: int,
    *,
    has_colors: bool = True,
    width: int = _BAR_WIDTH,
) -> Text:
    """Return a bar whose full width is the device's memory, or what is needed where that is more."""
    bar = Text()
    whole_bytes = max(limit_bytes, device_bytes)
    num_cells = total = 0
    for kind, num_bytes in held.items():
        total += num_bytes
        cells = min(width, round(total / whole_bytes * width)) - num_cells
        bar.append(_block(kind, has_colors) * cells, _COLORS[kind])
        num_cells += cells
    rest = min(width, round(device_bytes / whole_bytes * width)) - num_cells
    bar.append(_REST * max(0, rest), "dim")
    bar.append(" " * (width - num_cells - max(0, rest)))
    return bar.append(f" {device_bytes / limit_bytes:4.0%}")


def _block(kind: str, has_colors: bool) -> str:
    return _BLOCKS["parameters"] if has_colors else _BLOCKS[kind]


def gpus_table(gpus: Sequence[Gpu], *, width: int = _WHOLE_WIDTH) -> Table:
    """Return the catalog; a narrow terminal does without what the names say already."""
    is_whole = width >= _WHOLE_WIDTH
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("name", "GPU", "architecture") if is_whole else ("name",):
        table.add_column(name, no_wrap=True)
    for name in ("memory", "capability", "bandwidth", "float32", "float16"):
        table.add_column(name if is_whole else _BRIEF.get(name, name), justify="right", no_wrap=True)
    unit = " TFLOPS" if is_whole else ""
    for gpu in gpus:
        table.add_row(
            gpu.name,
            *((gpu.title, gpu.architecture) if is_whole else ()),
            format_bytes(gpu.memory_bytes),
            f"{gpu.capability[0]}.{gpu.capability[1]}",
            f"{(gpu.bandwidth_bytes_per_second or 0) / 1e9:,.0f} GB/s",
            f"{(gpu.fp32_flops or 0) / 1e12:,.1f}{unit}",
            "" if gpu.fp16_flops is None else f"{gpu.fp16_flops / 1e12:,.0f}{unit}",
        )
    return table
