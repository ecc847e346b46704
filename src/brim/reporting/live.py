"""The live view of a search on a terminal: a bar for each case, a line for each probe."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.padding import Padding
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from brim.cases import Case
from brim.finding.observer import describe_probe
from brim.findings import Finding, Probe, Verdict
from brim.reporting.table import bar
from brim.searching import Ask
from brim.units import format_bytes

_STYLES = {Verdict.FITS: "green", Verdict.OOM: "red", Verdict.ERROR: "bold red", Verdict.UNCLEAR: "yellow"}


class LiveObserver:
    """Draws the search while it runs; probes scroll by, cases stay below them.

    Use it as a context manager, so that the terminal is always given back.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._limit_bytes = 1
        self._cases: list[Case] = []
        self._findings: dict[Case, Finding] = {}
        self._current: Case | None = None
        self._ask: Ask | None = None
        self._best: Probe | None = None
        self._output = ""
        self._is_loading = False
        self._spinner = Spinner("dots", style="cyan")
        self._loading = Spinner("dots", Text("loading the workload", "dim"), style="cyan")
        self._live = Live(console=console, refresh_per_second=8, transient=True, get_renderable=self._draw)

    def __enter__(self) -> LiveObserver:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def started(self, cases: list[Case], *, limit_bytes: int) -> None:
        """Draw a row for each case; the workload is loaded before the first of them starts."""
        self._cases, self._limit_bytes, self._is_loading = cases, limit_bytes, True

    def case_started(self, case: Case) -> None:
        """Move to the case's row."""
        self._current, self._ask, self._best, self._is_loading = case, None, None, False
        if case:
            self._console.print(Text(f"case {case}", "bold"))

    def probe_started(self, case: Case, ask: Ask) -> None:
        """Show what is being tried."""
        self._ask, self._is_loading = ask, False

    def probe_ended(self, case: Case, probe: Probe, following: Ask | None) -> None:
        """Print the probe's line."""
        self._ask, self._output = None, ""
        if probe.verdict is Verdict.FITS and (self._best is None or probe.microbatch >= self._best.microbatch):
            self._best = probe
        self._console.print(Text("  " + describe_probe(probe, self._limit_bytes, following), _STYLES[probe.verdict]))

    def found(self, finding: Finding) -> None:
        """Fill in the case's row."""
        self._findings[finding.case] = finding

    def output(self, line: str) -> None:
        """Show the line, dimmed, below the cases."""
        self._output = line

    def note(self, message: str) -> None:
        """Print a dim line."""
        self._is_loading = False
        self._console.print(Text(f"  {message}", "dim"))

    def warn(self, message: str) -> None:
        """Print a yellow line."""
        self._console.print(Text(message, "yellow"))

    def _draw(self) -> RenderableType:
        table = Table(box=None, show_header=False, padding=(0, 1))
        shown = self._visible_cases()
        for case in shown:
            table.add_row(*self._row(case))
        hidden = len(self._cases) - len(shown)
        below: list[RenderableType] = [Text(f" and {hidden} more cases", "dim")] if hidden else []
        if self._is_loading:
            below.append(Padding(self._loading, (0, 1)))
        if self._output:
            below.append(Text(f"   {self._output}", "dim", no_wrap=True, overflow="ellipsis"))
        return Group(table, *below)

    def _visible_cases(self) -> list[Case]:
        """Return as many cases as fit on half the screen, around the current one."""
        room = max(3, self._console.height // 2)
        if len(self._cases) <= room:
            return self._cases
        current = self._cases.index(self._current) if self._current in self._cases else 0
        first = min(max(0, current - room // 2), len(self._cases) - room)
        return self._cases[first : first + room]

    def _row(self, case: Case) -> list[RenderableType]:
        finding = self._findings.get(case)
        name = Text(escape(str(case)))
        if finding is not None:
            answer = Text(finding.answer, "bold green" if finding.microbatch is not None else "red")
            return [Text("✓", "green"), name, answer, bar(finding.peak_bytes, self._limit_bytes), ""]
        if case != self._current:
            return [Text("·", "dim"), Text(str(case), "dim"), "", "", ""]
        best = self._best
        doing = "tracing" if self._ask is None else f"probing {self._ask.microbatch:,}"
        if self._ask is not None and self._ask.confirms:
            doing = f"confirming {self._ask.microbatch:,}"
        size = "" if best is None else f"≥ {best.microbatch:,}"
        peak = None if best is None else best.peak_bytes
        limit = Text(f"{doing}, limit {format_bytes(self._limit_bytes)}", "dim")
        return [self._spinner, name, size, bar(peak, self._limit_bytes), limit]
