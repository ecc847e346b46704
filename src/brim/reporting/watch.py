"""What `brim watch` shows: devices with their bars and their recent past, a job's checklist."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from brim.project.plan_book import KeptPlan
from brim.units import format_bytes, format_seconds
from brim.watching.checklist import Check, Mark
from brim.watching.samples import DeviceSample, ProcessSample
from brim.watching.told import ProcessTold

_LEVELS = "▁▂▃▄▅▆▇█"
# A bar of four cells and its numbers, the longest line that must not be cut: `  ░░░░ 100%  12.0 GiB of 24.0 GiB`.
_FEWEST_COLUMNS = 33
_LONGEST_BAR = 40
_NUM_REMEMBERED = 120
_MARKS = {Mark.PASS: ("✓", "green"), Mark.FAIL: ("✗", "red"), Mark.NOT_SEEN: ("?", "yellow")}


class WatchView:
    """The newest samples with their past, drawn to the size of the terminal.

    Args:
        plan: The plan in use, whose expected peak is marked in the bar.
        note: A line at the foot, e.g. which keys there are.
    """

    def __init__(self, *, plan: KeptPlan | None, note: str = "") -> None:
        self._plan = plan
        self._note = note
        self._devices: Sequence[DeviceSample] = ()
        self._past: dict[str, deque[float]] = {}
        self._job = ""

    def update(self, devices: Sequence[DeviceSample], *, job: str = "") -> None:
        """Take new samples, and a line on the job that runs."""
        self._devices, self._job = devices, job
        for device in devices:
            self._past.setdefault(device.name, deque(maxlen=_NUM_REMEMBERED)).append(device.fill)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw to the width and the rows that there are: what is said at the foot is never what is cut."""
        width = options.max_width
        if width < _FEWEST_COLUMNS:
            yield Text(f"{width} columns; needs {_FEWEST_COLUMNS}", "yellow")
            return

        def num_rows(*parts: RenderableType) -> int:
            loose = options.update(height=None)
            return sum(len(console.render_lines(part, loose, pad=False)) for part in parts)

        foot = self._foot(width)
        left = options.height or options.max_height
        # What a job prints scrolls by above the view, and needs room as well.
        left = (left // 2 if self._job else left) - num_rows(*foot)
        parts = {device.name: self._essential(device, width) for device in self._devices}
        num_hidden = 0
        while sum(num_rows(*each) for each in parts.values()) + bool(num_hidden) > left and len(parts) > 1:
            parts.popitem()
            num_hidden += 1
        if num_hidden:
            foot.insert(0, Text(f"and {num_hidden} more: too few rows", "dim"))
        left -= sum(num_rows(*each) for each in parts.values()) + bool(num_hidden)
        for name, part in self._optional(width):
            if name in parts and num_rows(part) <= left:
                parts[name].append(part)
                left -= num_rows(part)
        yield Group(*(part for each in parts.values() for part in each), *foot)

    def _foot(self, width: int) -> list[RenderableType]:
        foot: list[RenderableType] = []
        if self._note:
            foot.append(Text(self._note, "dim"))
        if self._job:
            # The terminal writes ^C behind the last line; were that to wrap, Rich would take back one line too few.
            foot.append(Constrain(Text(self._job), width - len("^C")))
        return foot

    def _essential(self, device: DeviceSample, width: int) -> list[RenderableType]:
        """Return a device's name and its bar."""
        head = Text.assemble((device.name, "bold"), f"  {device.title}")
        if device.is_gone:
            return [Text.assemble(head, ("  does not answer any more", "red"))]
        if device.utilization is not None:
            head.append(f"  {device.utilization:4.0%} busy")
        if device.watts is not None:
            most = f" of {device.most_watts:.0f}" if device.most_watts else ""
            head.append(f"  {device.watts:.0f}{most} W")
        return [head, Text.assemble("  ", self._bar(device, _bar_length(device, width)), _numbers(device))]

    def _optional(self, width: int) -> Iterator[tuple[str, RenderableType]]:
        """Yield what is shown where rows are free, most wanted first, each with the name of its device."""
        present = [device for device in self._devices if not device.is_gone]
        for device in present:
            if self._expected(device):
                has_mark = self._mark_at(device, _bar_length(device, width)) is not None
                said = ("┃ " if has_mark else "") + self._expected(device)
                yield device.name, Padding(Text(said, "dim"), (0, 0, 0, 2))
        for device in present:
            past = sparkline(self._past[device.name], _bar_length(device, width))
            yield device.name, Text(f"  {past}", "cyan")
        for nth in range(max((len(device.processes) for device in present), default=0)):
            for device in present:
                if nth < len(device.processes):
                    yield device.name, _process_line(device.processes[nth])

    def _bar(self, device: DeviceSample, length: int) -> Text:
        full = min(length, round(device.fill * length))
        bar = Text("█" * full, "cyan") + Text("░" * (length - full), "dim")
        at = self._mark_at(device, length)
        return bar if at is None else bar[:at] + Text("┃", "yellow") + bar[at + 1 :]

    def _mark_at(self, device: DeviceSample, length: int) -> int | None:
        """Return the cell of the bar at which the plan's least peak lies; None where that is none of it."""
        if not self._expected(device):
            return None
        assert self._plan is not None
        assert self._plan.expected is not None
        at = min(length - 1, int(self._plan.expected.peak_low_bytes / device.total_bytes * length))
        # In the first cell a mark would say that next to nothing is planned, and hide whether anything is held.
        return at or None

    def _expected(self, device: DeviceSample) -> str:
        """Return what the plan expects of a device; nothing where it is for another kind."""
        if self._plan is None or self._plan.expected is None:
            return ""
        expected = self._plan.expected
        has_gpu = any(each.name != "cpu" for each in self._devices)
        if (device.name == "cpu") == (has_gpu or expected.gpu is not None):
            return ""
        return (
            f"plan {self._plan.number} fills {format_bytes(expected.peak_low_bytes)} "
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


def _process_line(process: ProcessSample) -> Text:
    held = "not told" if process.used_bytes is None else format_bytes(process.used_bytes)
    line = Text(no_wrap=True, overflow="ellipsis")
    return line.append(f"  {process.pid:>8}  {held:>8}  {process.command or process.name}")


def _numbers(device: DeviceSample) -> str:
    return f" {device.fill:4.0%}  {format_bytes(device.used_bytes)} of {format_bytes(device.total_bytes)}"


def _bar_length(device: DeviceSample, width: int) -> int:
    return min(_LONGEST_BAR, width - len(_numbers(device)) - 2)
