"""What `brim watch` shows: devices with their bars and their recent past, a job's checklist."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from brim.project.plan_book import KeptPlan
from brim.units import format_bytes, format_seconds
from brim.watching.checklist import Check, Mark
from brim.watching.samples import DeviceSample
from brim.watching.told import ProcessTold

_LEVELS = "▁▂▃▄▅▆▇█"
# Below so many columns processes are left out and bars are short.
_NARROW_COLUMNS = 70
# A bar of four cells and its numbers, the longest line that must not be cut: `  ░░░░ 100%  12.0 GiB of 24.0 GiB`.
_FEWEST_COLUMNS = 33
_LONGEST_BAR = 40
_NUM_REMEMBERED = 120
_MARKS = {Mark.PASS: ("✓", "green"), Mark.FAIL: ("✗", "red"), Mark.NOT_SEEN: ("?", "yellow")}


class WatchView:
    """The newest samples with their past, drawn to the width of the terminal.

    Args:
        plan: The plan in use, whose expected peak is marked in the bar.
        note: A line at the foot, e.g. which keys there are.
    """

    def __init__(self, *, plan: KeptPlan | None, note: str = "", shows_processes: bool = True) -> None:
        self._plan = plan
        self._note = note
        self._shows_processes = shows_processes
        self._devices: Sequence[DeviceSample] = ()
        self._past: dict[str, deque[float]] = {}
        self._job = ""

    def update(self, devices: Sequence[DeviceSample], *, job: str = "") -> None:
        """Take new samples, and a line on the job that runs."""
        self._devices, self._job = devices, job
        for device in devices:
            self._past.setdefault(device.name, deque(maxlen=_NUM_REMEMBERED)).append(device.fill)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw to the width that there is."""
        width = options.max_width
        if width < _FEWEST_COLUMNS:
            yield Text(f"{width} columns; needs {_FEWEST_COLUMNS}", "yellow")
            return
        parts: list[RenderableType] = []
        for device in self._devices:
            parts.extend(self._device(device, width))
        if self._job:
            parts.append(Text(self._job))
        if self._note:
            parts.append(Text(self._note, "dim"))
        yield Group(*parts)

    def _device(self, device: DeviceSample, width: int) -> list[RenderableType]:
        head = Text.assemble((device.name, "bold"), f"  {device.title}")
        if device.is_gone:
            return [Text.assemble(head, ("  does not answer any more", "red"))]
        if device.utilization is not None:
            head.append(f"  {device.utilization:4.0%} busy")
        if device.watts is not None:
            most = f" of {device.most_watts:.0f}" if device.most_watts else ""
            head.append(f"  {device.watts:.0f}{most} W")
        numbers = f" {device.fill:4.0%}  {format_bytes(device.used_bytes)} of {format_bytes(device.total_bytes)}"
        length = min(_LONGEST_BAR, width - len(numbers) - 2)
        lines: list[RenderableType] = [
            head,
            Text.assemble("  ", self._bar(device, length), numbers),
            Text("  " + sparkline(self._past[device.name], length), "cyan"),
        ]
        expected = self._expected(device)
        if expected:
            lines.append(Padding(Text(expected, "dim"), (0, 0, 0, 2)))
        if self._shows_processes and width >= _NARROW_COLUMNS and device.processes:
            lines.append(_processes(device))
        return lines

    def _bar(self, device: DeviceSample, length: int) -> Text:
        full = min(length, round(device.fill * length))
        bar = Text("█" * full, "cyan") + Text("░" * (length - full), "dim")
        if self._expected(device):
            assert self._plan is not None
            assert self._plan.expected is not None
            at = min(length - 1, int(self._plan.expected.peak_low_bytes / device.total_bytes * length))
            bar = bar[:at] + Text("┃", "yellow") + bar[at + 1 :]
        return bar

    def _expected(self, device: DeviceSample) -> str:
        """Return what the plan expects of a device; nothing where it is for another kind."""
        if self._plan is None or self._plan.expected is None:
            return ""
        expected = self._plan.expected
        has_gpu = any(each.name != "cpu" for each in self._devices)
        if (device.name == "cpu") == (has_gpu or expected.gpu is not None):
            return ""
        return (
            f"┃ plan {self._plan.number} fills {format_bytes(expected.peak_low_bytes)} "
            f"to {format_bytes(expected.peak_high_bytes)}"
        )


def sparkline(values: Sequence[float] | deque[float], length: int) -> str:
    """Write shares as a row of blocks, the newest last.

    >>> sparkline([0.0, 0.5, 1.0], 8)
    '▁▅█'
    """
    top = len(_LEVELS) - 1
    return "".join(_LEVELS[min(top, max(0, round(value * top)))] for value in list(values)[-length:])


def log_line(devices: Sequence[DeviceSample], job: str = "") -> str:
    """Write samples as one line of a log."""
    parts = []
    for device in devices:
        if device.is_gone:
            parts.append(f"{device.name} does not answer any more")
            continue
        busy = "" if device.utilization is None else f", {device.utilization:.0%} busy"
        watts = "" if device.watts is None else f", {device.watts:.0f} W"
        held = f"{format_bytes(device.used_bytes)} of {format_bytes(device.total_bytes)} ({device.fill:.0%})"
        parts.append(f"{device.name} {held}{busy}{watts}")
    return " · ".join([*parts, *([job] if job else [])])


def checklist_table(checks: Sequence[Check]) -> Table:
    """Return a job's checklist."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for _ in range(4):
        table.add_column(overflow="fold")
    for check in checks:
        sign, style = _MARKS[check.mark]
        table.add_row(Text(sign, style), check.name, Text(check.mark.value, style), Text(check.text))
    return table


def ranks_table(ranks: Sequence[ProcessTold]) -> Table:
    """Return what each rank of a job did and had."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("rank", "pid", "steps", "a step", "host peak", "GPU peak"):
        table.add_column(name, justify="right")
    for rank in ranks:
        seconds = "" if rank.step_seconds is None else format_seconds(rank.step_seconds)
        host, gpu = ("" if peak is None else format_bytes(peak) for peak in (rank.host_peak_bytes, rank.reserved_bytes))
        table.add_row(str(rank.rank), str(rank.pid), f"{rank.num_steps:,}", seconds, host, gpu)
    return table


def _processes(device: DeviceSample) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(justify="right", min_width=10)
    table.add_column(justify="right")
    table.add_column()
    for process in device.processes:
        held = "not told" if process.used_bytes is None else format_bytes(process.used_bytes)
        table.add_row(str(process.pid), held, Text(process.name))
    return table
