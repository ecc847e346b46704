"""Rows of a benchmark that takes hours: each is done once and kept at once, so that a run that is stopped goes on."""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

ORDER_SEED = 0
# After how many rows a process is replaced, so that what libraries keep does not pile up.
ROWS_PER_PROCESS = 20
LONGEST_WAIT_SECONDS = 1.0

Row = dict[str, Any]


class RowsStoppedError(Exception):
    """Ctrl-C, with how many rows were done by then."""

    def __init__(self, num_done: int, num_rows: int) -> None:
        super().__init__(num_done, num_rows)
        self.num_done = num_done
        self.num_rows = num_rows


class KeptRows:
    """The results of a file, one on a line; a last line that was cut short by the end of its writer is none.

    Attributes:
        results: Each with its `row`, and with a `problem` where it has no figures.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        if lines and not _is_whole(lines[-1]):
            lines.pop()
        self.results: list[Row] = [json.loads(line) for line in lines]

    def __contains__(self, row: Row) -> bool:
        return any(result["row"] == row for result in self.results)

    def forget_problems(self, rows: Sequence[Row]) -> None:
        """Drop the results of rows that had a problem, so that these are tried again."""
        self.results = [result for result in self.results if "problem" not in result or result["row"] not in rows]
        lines = [json.dumps(result) + "\n" for result in self.results]
        whole = self._path.with_suffix(".new")
        whole.write_text("".join(lines))
        whole.replace(self._path)

    def add(self, result: Row) -> None:
        """Keep a result."""
        self.results.append(result)
        with self._path.open("a") as out:
            out.write(json.dumps(result) + "\n")


def spread(rows: Sequence[Row], limit: int | None) -> list[Row]:
    """Return as many rows as the limit says, evenly spread.

    >>> spread([{"size": size} for size in range(10)], 3)
    [{'size': 0}, {'size': 3}, {'size': 6}]
    """
    num_rows = min(limit or len(rows), len(rows))
    return [rows[index * len(rows) // num_rows] for index in range(num_rows)]


def run_rows(
    run: Callable[[Row], Row], rows: Sequence[Row], kept: KeptRows, *, processes: int, description: str
) -> None:
    """Run the rows that have no figures yet, in processes and in an order of chance, and keep every result.

    Raises:
        RowsStoppedError: Ctrl-C; the processes are ended.
    """
    kept.forget_problems(rows)
    left = [row for row in rows if row not in kept]
    if not left:
        return
    random.Random(ORDER_SEED).shuffle(left)
    num_done = len(rows) - len(left)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    try:
        with _pool(processes) as pool, Progress(*columns) as progress:
            bar = progress.add_task(description, total=len(rows), completed=num_done)
            for result in _each(pool.imap_unordered(run, left)):
                kept.add(result)
                num_done += 1
                progress.advance(bar)
    except KeyboardInterrupt:
        raise RowsStoppedError(num_done, len(rows)) from None


def _each(results: Any) -> Iterator[Row]:
    """Yield results as they come; Ctrl-C just before a wait is noticed only after it, so no wait is long."""
    while True:
        try:
            yield results.next(LONGEST_WAIT_SECONDS)
        except multiprocessing.TimeoutError:
            continue
        except StopIteration:
            return


@contextmanager
def _pool(processes: int) -> Iterator[Any]:
    """Start processes that Ctrl-C does not reach: they are ended by this one, and say nothing."""
    # Threads and processes inherit the mask of those that start them, also the pool's thread that replaces processes.
    # The first process of all resets it, and so it comes before.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        pool = multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=ROWS_PER_PROCESS)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with pool:
        yield pool


def _is_whole(line: str) -> bool:
    try:
        json.loads(line)
    except json.JSONDecodeError:
        return False
    return True
