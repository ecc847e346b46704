"""What one run of a command took of phantom GPUs: a table of its processes, and what held memory in the fullest."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from brim.finding.phantom import label_of
from brim.finding.predicted import KINDS, NUM_MODULES
from brim.groups import signal_name
from brim.phantom import Snapshot
from brim.probing.phantom_run import Progress
from brim.probing.phantoms import describe_refusal
from brim.probing.taken import End, Run, Taken
from brim.reporting.prediction import gpu_headings, legend, modules_table, stacked_bar
from brim.reporting.table import bar
from brim.units import format_bytes, format_count, format_seconds

_BAR_WIDTH, _LEAST_BAR_WIDTH = 40, 9
# How many columns the rest of the table takes beside the bar, at most.
_BESIDE_BAR = 82
# Less page-locked memory is what torch itself takes to read a number from a device.
_WORTH_A_COLUMN = 2**20
_VIEWER = "https://pytorch.org/memory_viz"
_STEPS = {"train": "training step", "eval": "evaluation step", "generate": "generation"}


def run_report(run: Run, *, has_colors: bool, width: int) -> Iterator[RenderableType]:
    """Yield what is printed of a run, one below the other."""
    yield Text(_heading(run), "bold")
    if run.taken:
        yield processes_table(run, has_colors=has_colors, width=width)
    else:
        is_early = run.ended is End.INTERRUPT or run.exit_code
        never = "It never used the GPU. Tell the command to, for example with --device cuda."
        yield Text("It had not used the GPU yet." if is_early else never, "yellow")
    if run.fullest is not None:
        yield from _details(run, run.fullest, has_colors=has_colors)
    for taken in run.taken:
        if taken.refused is not None:
            yield Text(_refusal(run, taken), "red")
    for remark in run.remarks:
        yield Text(remark)
    if run.snapshots:
        files = ", ".join(map(str, run.snapshots))
        yield Text(f"torch's own snapshot: {files}. Open it at {_VIEWER}.")


def _heading(run: Run) -> str:
    gpu, count = run.gpus[0], len(run.gpus)
    where = f"{f'{count} × ' if count > 1 else ''}{', '.join(gpu_headings(gpu))}"
    steps = f", {format_count(run.num_steps, _STEPS[run.kind])}" if run.kind else ""
    return (
        f"{label_of(run.words)} on a phantom GPU ({where}) with torch {run.torch}: "
        f"{_how_it_ended(run)} after {format_seconds(run.seconds)}{steps}"
    )


def _how_it_ended(run: Run) -> str:
    if run.ended is End.STEPS:
        return "ended by brim when its steps were done"
    if run.ended is End.INTERRUPT:
        return "interrupted"
    if run.exit_code is not None and run.exit_code < 0:
        return f"killed by {signal_name(-run.exit_code)}"
    return f"exit code {run.exit_code}"


def progress_line(progress: Progress, *, width: int) -> Text:
    """Return the fullest device while a command runs, as one line that is not wider than a terminal."""
    gpu = progress.gpu
    used, peak = format_bytes(progress.used_bytes), format_bytes(progress.peak_bytes)
    line = Text.assemble((f"brim {gpu.name} cuda:{progress.device} ", "bold"))
    told = f"  {used} of {format_bytes(gpu.memory_bytes)}, peak {peak}"
    steps = f", {format_count(progress.num_steps, 'step')}" if progress.num_steps else ""
    filled = bar(progress.used_bytes, gpu.memory_bytes)
    if len(line) + len(filled) + len(told) + len(steps) < width:
        line.append_text(filled)
    line.append(told).append(steps)
    line.truncate(max(0, width - 1))
    return line


def processes_table(run: Run, *, has_colors: bool, width: int) -> Table:
    """Return the table of all processes and devices, without what nobody has."""
    has_ranks = any(each.rank is not None for each in run.taken)
    has_pinned = any(each.pinned_bytes >= _WORTH_A_COLUMN for each in run.taken)
    table = Table(box=box.SIMPLE_HEAD)
    for name in (*(["rank"] if has_ranks else []), "process"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("device", no_wrap=True)
    table.add_column("memory by kind", no_wrap=True)
    numbers = ("allocated", "reserved", "on the device", "retries", *(["pinned on the host"] if has_pinned else []))
    for name in numbers:
        table.add_column(name, justify="right", overflow="fold")
    bar_width = min(_BAR_WIDTH, max(_LEAST_BAR_WIDTH, width - _BESIDE_BAR))
    for each in run.taken:
        memory_bytes = run.gpus[each.device].memory_bytes
        held = _by_kind(_shown(run, each))
        table.add_row(
            *([_or_dash(each.rank)] if has_ranks else []),
            str(each.pid),
            f"cuda:{each.device}",
            stacked_bar(held, each.device_bytes, memory_bytes, has_colors=has_colors, width=bar_width),
            format_bytes(each.allocated_bytes),
            format_bytes(each.reserved_bytes),
            format_bytes(each.device_bytes),
            _or_dash(each.num_retries),
            *([format_bytes(each.pinned_bytes)] if has_pinned else []),
        )
    for device, peak_bytes in enumerate(run.peaks_bytes):
        if sum(each.device == device for each in run.taken) > 1:
            whole = stacked_bar({}, peak_bytes, run.gpus[device].memory_bytes, has_colors=has_colors, width=bar_width)
            first = ["", "all"] if has_ranks else ["all"]
            table.add_row(*first, f"cuda:{device}", whole, "", "", format_bytes(peak_bytes), "", style="dim")
    return table


def _or_dash(number: int | None) -> str:
    return "–" if number is None else f"{number:,}"


def _details(run: Run, taken: Taken, *, has_colors: bool) -> Iterator[RenderableType]:
    """Yield by kind and by module what a process held."""
    held = _shown(run, taken)
    if held is None or not held.num_bytes:
        return
    is_refused = taken.refused is not None and held is taken.refused.held
    when = "when memory ran out" if is_refused else "at the peak"
    whose = f" of {taken.name}" if len(run.taken) > 1 else ""
    yield legend(_by_kind(held), f"{when[:1].upper()}{when[1:]}{whose}", has_colors=has_colors)
    modules = dict(list(held.by_module.items())[:NUM_MODULES])
    yield modules_table(modules, f"holds {when}", total_bytes=held.num_bytes)


def _shown(run: Run, taken: Taken) -> Snapshot | None:
    """Return what is shown of a process: what it held when it failed, else at its peak."""
    has_failed = run.ended is End.ITSELF and run.exit_code != 0
    if has_failed and taken.refused is not None and taken.refused.held is not None:
        return taken.refused.held
    return taken.held


def _by_kind(held: Snapshot | None) -> dict[str, int]:
    return {kind: held.by_kind.get(kind, 0) if held else 0 for kind in KINDS}


def _refusal(run: Run, taken: Taken) -> str:
    refused = taken.refused
    assert refused is not None
    whose = f" in {taken.name}" if len(run.taken) > 1 else ""
    told = describe_refusal(refused.held, refused.asked_bytes, refused.line)
    where = f" in {refused.line}" if refused.line else ""
    return f"Memory ran out{whose}: {told or f'asked for {format_bytes(refused.asked_bytes)}{where}'}."
