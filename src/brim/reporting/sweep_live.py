"""The live view of a sweep on a terminal: what runs, what is done, how long it will take, the best so far."""

from __future__ import annotations

import time
from collections import Counter

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from brim.sweeping.observer import Outlook, describe_config, describe_result, format_value
from brim.sweeping.plan import Trial
from brim.sweeping.results import TrialResult, is_better

_BAR_WIDTH = 24
_STYLES = {"done": "green", "oom": "red", "host_oom": "red", "predicted_oom": "dim"}
_MOST_ROWS = 12


class LiveSweepObserver:
    """Draws a sweep while it runs; trials that ended scroll by, those that run stay below them.

    Use it as a context manager, so that the terminal is always given back.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._outlook: Outlook | None = None
        self._running: dict[str, tuple[Trial, float]] = {}
        self._statuses: Counter[str] = Counter()
        self._num_timed = 0
        self._sum_seconds = 0.0
        self._most_at_once = 1
        self._best: TrialResult | None = None
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(console=console, refresh_per_second=4, transient=True, get_renderable=self._draw)

    def __enter__(self) -> LiveSweepObserver:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def started(self, outlook: Outlook) -> None:
        """Draw the bar."""
        self._outlook = outlook

    def trial_started(self, trial: Trial, attempt: int) -> None:
        """Add the trial's row."""
        self._running[trial.id] = (trial, time.monotonic())
        self._most_at_once = max(self._most_at_once, len(self._running))

    def trial_ended(self, result: TrialResult, following: str | None) -> None:
        """Print the trial's line."""
        self._running.pop(result.id, None)
        style = _STYLES.get(result.status, "bold red") if following is None else "yellow"
        self._console.print(Text(describe_result(result, following), style), soft_wrap=True)
        if following is not None:
            return
        self._statuses[result.status] += 1
        if result.seconds is not None:
            self._num_timed += 1
            self._sum_seconds += result.seconds
        if self._outlook is not None and is_better(result, self._best, self._outlook.metric):
            self._best = result

    def ended(self) -> None:
        """Leave the last picture to the results."""

    def note(self, message: str) -> None:
        """Print a dim line."""
        self._console.print(Text(message, "dim"))

    def warn(self, message: str) -> None:
        """Print a yellow line."""
        self._console.print(Text(message, "yellow"))

    @property
    def eta_seconds(self) -> float | None:
        """How long the rest should take, if it goes on as it did."""
        if self._outlook is None or not self._num_timed:
            return None
        left = self._outlook.num_trials - self._num_ended
        return left * self._sum_seconds / self._num_timed / self._most_at_once

    @property
    def _num_ended(self) -> int:
        return self._statuses.total() + (self._outlook.num_ended if self._outlook else 0)

    def _draw(self) -> RenderableType:
        if self._outlook is None:
            return Text("")
        table = Table(box=None, show_header=False, padding=(0, 1))
        for trial, since in list(self._running.values())[:_MOST_ROWS]:
            elapsed = clock(time.monotonic() - since)
            table.add_row(self._spinner, describe_config(trial.config, {}), Text(elapsed, "dim"))
        bar = Table(box=None, show_header=False, padding=(0, 1))
        total = self._outlook.num_trials
        bar.add_row(ProgressBar(total=total, completed=self._num_ended, width=_BAR_WIDTH), self.figures())
        return Group(table, bar)

    def figures(self) -> Text:
        """Return the line beside the bar."""
        assert self._outlook is not None
        num_done = self._statuses["done"]
        num_failed = self._statuses.total() - num_done
        parts = [
            f"{self._num_ended:,}/{self._outlook.num_trials:,}",
            f"{len(self._running)} running",
            f"{num_done:,} done",
            f"{num_failed:,} failed",
        ]
        if self.eta_seconds is not None:
            parts.append(f"ETA {clock(self.eta_seconds)}")
        if self._best is not None and self._outlook.metric is not None:
            name = self._outlook.metric.name
            parts.append(f"best {name} {format_value(self._best.metrics[name])}")
        return Text(" · ".join(parts))


def clock(seconds: float) -> str:
    """Return a time span as a clock shows it, to the second or, from an hour on, to the minute.

    >>> clock(4.2), clock(75), clock(3 * 3600 + 125)
    ('4 s', '1 min 15 s', '3 h 2 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
